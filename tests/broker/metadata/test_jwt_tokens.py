"""Validation of JWTs, and the principals of valid ones."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.broker.issuer import AUDIENCE, ISSUER, Issuer

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.metadata.jwks import Jwks
from tidelog_broker.metadata.jwt_tokens import EXPIRES_S_MAX, JwtTokens, TokenRules
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import TOKEN_BYTES_MAX

RULES = TokenRules(ISSUER, AUDIENCE, 30, "sub", "roles", "admin")
MINE = Issuer()
OTHER = Issuer()


@pytest.fixture
async def offload() -> AsyncIterator[Offload]:
    workers = IoWorkers(1, name="secret")
    yield Offload(workers, asyncio.get_running_loop())
    workers.close()


@pytest.fixture
async def tokens(tmp_path: Path, offload: Offload) -> AsyncIterator[JwtTokens]:
    source = str(MINE.save(tmp_path / "jwks.json"))
    jwks = Jwks(source, workers=offload, failed=lambda: None, changed=lambda: None, apart_s=0.001)
    following = asyncio.create_task(jwks.follow(every_s=60, again_s=60))
    yield JwtTokens(jwks, RULES, permissions=Permissions(), work=CredentialWork(offload))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def part(said: object) -> str:
    return base64.urlsafe_b64encode(said if isinstance(said, bytes) else json.dumps(said).encode()).decode().rstrip("=")


async def test_token_maps_to_a_principal_and_limits_the_session(tokens: JwtTokens) -> None:
    exp = int(time.time()) + 100
    session = await tokens.session_of(MINE.token(exp=exp, roles=["etl", "ops"], aud=["other", AUDIENCE]), address="")
    assert (session.principal, session.roles) == ("ann", frozenset({"etl", "ops"}))
    assert session.expires_us == (exp + RULES.leeway_s) * 1_000_000
    assert session.identity.startswith("jwt/")
    assert (await tokens.session_of(MINE.token(roles="etl ops"), address="")).roles == {"etl", "ops"}
    assert (await tokens.session_of(MINE.token(lasts_s=-10), address="")).principal == "ann", "clocks may be apart"
    assert (await tokens.session_of(MINE.token(exp=exp + 0.5), address="")).expires_us == session.expires_us
    last = await tokens.session_of(MINE.token(exp=EXPIRES_S_MAX), address="")
    assert last.expires_us == EXPIRES_S_MAX * 1_000_000


NOW = int(time.time())
CLAIMS: dict[str, Any] = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": NOW + 6000}
PUBLIC = MINE.keys["one"].public_key()
HEADER = {"alg": "EdDSA", "kid": "one"}
SIGNED = MINE.token()


def hmac_of(secret: bytes) -> str:
    """Return a token that is signed with what everybody knows."""
    import hashlib  # noqa: PLC0415
    import hmac  # noqa: PLC0415

    said = f"{part({'alg': 'HS256', 'kid': 'one'})}.{part(CLAIMS)}"
    return f"{said}.{part(hmac.digest(secret, said.encode(), hashlib.sha256))}"


@pytest.mark.parametrize(
    ("token", "why"),
    [
        ("", "not a JWT"),
        ("a.b.c", "not a JWT"),
        ("tlk_abc_def", "not a JWT"),
        ("\u2028.\u202e.x", "not a JWT"),
        (part(b"[" * 9000) + ".e30.e30", "not a JWT"),
        (part(b'{"alg":"EdDSA","kid":' + b"[" * 5000 + b"]" * 5000 + b"}") + ".e30.e30", "not a JWT"),
        (f"{part({'alg': 'none', 'kid': 'one'})}.{part(CLAIMS)}.", "algorithm"),
        (f"{part({'alg': 'none'})}.{part(CLAIMS)}.", "algorithm"),
        (hmac_of(PUBLIC.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)), "algorithm"),
        (hmac_of(PUBLIC.public_bytes(Encoding.Raw, PublicFormat.Raw)), "algorithm"),
        (f"{part({'alg': 'RS256', 'kid': 'one'})}.{part(CLAIMS)}.{part(b's' * 256)}", "algorithm"),
        (OTHER.token(), "signature does not verify"),
        (SIGNED[:-8] + "AAAAAAAA", "signature does not verify"),
        (SIGNED.split(".")[0] + "." + part(CLAIMS | {"sub": "eve"}) + "." + SIGNED.split(".")[2], "does not verify"),
        (f"{part(HEADER | {'kid': 'two'})}.{part(CLAIMS)}.{part(b'')}", "not one of the keys"),
        (f"{part(HEADER | {'kid': 7})}.{part(CLAIMS)}.{part(b'')}", "not a JWT"),
        (f"{part(HEADER | {'kid': 'k' * 300})}.{part(CLAIMS)}.{part(b'')}", "1 to 256"),
        (f"{part(HEADER | {'jwk': {}, 'jku': 'http://127.0.0.1/', 'kid': 'two'})}.e30.e30", "not one of the keys"),
        (MINE.token(iss="https://other"), "issuer"),
        (MINE.token(aud="other"), "audience"),
        (MINE.token(aud=[]), "'aud'"),
        (MINE.token(iss=None), "'iss'"),
        (MINE.token(aud=None), "'aud'"),
        (MINE.token(exp=None), "'exp'"),
        (MINE.token(nbf=NOW + 3600), "not valid yet"),
        (MINE.token(iat=NOW + 3600), "not valid yet"),
        (MINE.token(exp="soon"), "not a JWT"),
        (MINE.token(exp=float("inf")), "not a JWT"),
        (MINE.token(exp=str(NOW + 6000)), "'exp' must be a number of seconds"),
        (MINE.token(exp=10**300), "'exp' must be a number of seconds"),
        (MINE.token(exp=(NOW + 6000) * 1000), "'exp' must be a number of seconds"),
        (MINE.token(exp=float("nan")), "not a JWT"),
        (MINE.token(nbf=str(NOW - 600)), "'nbf' must be a number of seconds"),
        (MINE.token(nbf=True), "'nbf' must be a number of seconds"),
        (MINE.token(nbf=-1), "'nbf' must be a number of seconds"),
        (MINE.token(iat=str(NOW - 600)), "'iat' must be a number of seconds"),
        (MINE.token(iat=False), "'iat' must be a number of seconds"),
        (MINE.token("admin "), "ends with a space"),
        (MINE.token("\uff41dmin"), "NFKC"),
        (MINE.token("\u0430dmin"), "mixes letters"),
        (MINE.token(roles=["etl "]), "ends with a space"),
        (MINE.token(None), "must be the principal's name"),
        (MINE.token(""), "printable"),
        (MINE.token("*"), "is reserved"),
        (MINE.token("role:etl"), "is reserved"),
        (MINE.token("ann\n127.0.0.1 admin"), "printable"),
        (MINE.token("n" * 256), "printable"),
        (MINE.token("admin"), "administrator"),
        (MINE.token(roles=[7]), "must be a list"),
        (MINE.token(roles={"etl": 1}), "must be a list"),
        (MINE.token(roles=["*"]), "is reserved"),
        (MINE.token(roles=["r"] * 65), "at most 64"),
        (jwt.encode(CLAIMS, MINE.keys["one"], "EdDSA", headers={"kid": "one", "crit": ["x"], "x": 1}), "not a JWT"),
        ("x" * (TOKEN_BYTES_MAX + 1), "at most"),
    ],
    ids=itertools.count(1),  # tokens are others in each process that shares the tests
)
async def test_invalid_token_is_refused_without_quoting_it(tokens: JwtTokens, token: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as refused:
        await tokens.session_of(token, address="")
    assert refused.value.code == pb.UNAUTHENTICATED
    assert refused.value.message.isprintable()
    assert not token or token not in refused.value.message


async def test_expired_token_is_refused_as_expired(tokens: JwtTokens) -> None:
    with pytest.raises(ProtocolError) as refused:
        await tokens.session_of(MINE.token(lasts_s=-60), address="")
    assert refused.value.code == pb.CREDENTIALS_EXPIRED
