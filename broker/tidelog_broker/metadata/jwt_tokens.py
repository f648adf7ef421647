"""Authentication by JWT bearer tokens (RFC 7519) that an issuer has signed for this cluster.

The signature is verified before any claim is used. An error names the claim that is wrong, never the token. No token
maps to the administrator principal (setting `admin`), since the issuer's users could then choose to be it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jwt

from tidelog_broker.core.security.permissions import Permissions, check_principal
from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.metadata.jwks import JWT_IDENTITY_PREFIX, Jwks
from tidelog_broker.metadata.jwt_keys import KEY_ID_CHARS_MAX, SigningKey
from tidelog_broker.metadata.security_limits import ROLES_MAX
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import TOKEN_BYTES_MAX

EXPIRES_S_MAX: Final = 253_402_300_799
"""The end of the year 9999; a larger number is refused, since it is probably in milliseconds."""

_PLAIN: Final[dict[type[Exception], str]] = {
    jwt.ImmatureSignatureError: (
        "the token is not valid yet: its nbf or iat is in the future; check the clocks of the issuer and "
        "the node, or raise jwt_leeway_s"
    ),
    jwt.InvalidIssuerError: (
        "the token's issuer (iss) is not the one in the setting jwt_issuer; get a token from that issuer, "
        "or correct jwt_issuer"
    ),
    jwt.InvalidAudienceError: (
        "the token's audience (aud) does not contain the value of the setting jwt_audience; request a "
        "token for that audience, or correct jwt_audience"
    ),
    jwt.InvalidAlgorithmError: (
        "the token is signed with an algorithm that its key does not allow; use a token that its issuer signs with an "
        "algorithm of the key"
    ),
    jwt.InvalidSignatureError: "the token's signature does not verify with the issuer's key; get a new token",
}


class TokenRules(NamedTuple):
    """Requirements that a JWT must meet.

    Attributes:
        issuer, audience: required values.
        leeway_s: tolerated clock difference between issuer and node.
        principal_claim, roles_claim: the claims with the caller's name and roles.
        admin: name of the administrator principal (setting `admin`), which no token may name.
    """

    issuer: str
    audience: str
    leeway_s: int
    principal_claim: str
    roles_claim: str
    admin: str


class JwtTokens:
    """Verifies the tokens of clients, and creates their sessions."""

    def __init__(self, jwks: Jwks, rules: TokenRules, *, permissions: Permissions, work: CredentialWork) -> None:
        self._jwks = jwks
        self._rules = rules
        self._permissions = permissions
        self._work = work

    async def session_of(self, token: str, *, address: str) -> Session:
        """Return the session for a token that was presented from an address; it ends with the token.

        Raises:
            ProtocolError: UNAUTHENTICATED or CREDENTIALS_EXPIRED with the cause; OVERLOADED or EPOCH_CHANGING if the
                token cannot be verified at the moment.
        """
        if len(token.encode()) > TOKEN_BYTES_MAX:
            raise ProtocolError(
                pb.UNAUTHENTICATED, f"a token must have at most {TOKEN_BYTES_MAX} bytes, got {len(token.encode())}"
            )
        key = await self._jwks.key(_key_id_of(token))
        claims = await self._work.call(address, _verified, token, key, self._rules)
        principal, roles = _principal_of(claims, self._rules), _roles_of(claims, self._rules)
        if self._jwks.has_ended(JWT_IDENTITY_PREFIX + key.fingerprint):  # the key was revoked during the verification
            raise _wrong("the token's key is no longer one of the keys in jwt_jwks of this node; get a new token")
        return Session(
            self._permissions,
            principal,
            roles,
            identity=JWT_IDENTITY_PREFIX + key.fingerprint,
            expires_us=min(int(claims["exp"]) + self._rules.leeway_s, EXPIRES_S_MAX) * 1_000_000,
        )


def _key_id_of(token: str) -> str | None:
    """Return the key id in an unverified token header; None if it has no valid key id."""
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _wrong("the token is not a JWT; pass a JSON Web Token of the issuer in jwt_issuer") from None
    if key_id is not None and not 1 <= len(key_id) <= KEY_ID_CHARS_MAX:
        raise _wrong(f"a token's key id (kid) must have 1 to {KEY_ID_CHARS_MAX} characters, got {len(key_id)}")
    return key_id


def _verified(token: str, key: SigningKey, rules: TokenRules) -> dict[str, Any]:
    """Verify a token and return its claims. Takes about a millisecond; call it on a worker."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.public,
            algorithms=sorted(key.algorithms),
            issuer=rules.issuer,
            audience=rules.audience,
            leeway=rules.leeway_s,
            options={"require": ["exp", "iss", "aud"]},
        )
    except jwt.ExpiredSignatureError:
        raise ProtocolError(pb.CREDENTIALS_EXPIRED, "the token has expired; get a new one and reconnect") from None
    except jwt.MissingRequiredClaimError as error:
        raise _wrong(f"the token lacks the claim {error.claim!r}; configure its issuer to include it") from None
    except Exception as error:  # noqa: BLE001 - any failure that a token causes means that it is invalid
        raise _wrong(_PLAIN.get(type(error), "the token is not a JWT that this node accepts; get a new one")) from None
    _check_times(claims)
    return claims


def _check_times(claims: dict[str, Any]) -> None:
    """Refuse times that are not numbers (RFC 7519, 2: NumericDate); the library also accepts text and booleans."""
    for claim in ("exp", "nbf", "iat"):
        value = claims.get(claim, 0)
        # Compare the exact type, because True is an int.
        if type(value) not in {int, float} or not 0 <= value <= EXPIRES_S_MAX:
            raise _wrong(
                f"the token's claim {claim!r} must be a number of seconds since 1970, from 0 to {EXPIRES_S_MAX}, got "
                f"{value!r:.80}"
            )


def _principal_of(claims: dict[str, Any], rules: TokenRules) -> str:
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str):
        raise _wrong(
            f"the token's claim {rules.principal_claim!r} must be the principal's name, as text, got {name!r:.80}"
        )
    _check_name(name, rules.principal_claim)
    if name == rules.admin:
        raise _wrong(
            f"the token's claim {rules.principal_claim!r} names the administrator {name!r}, who can only use keys of "
            "admin_key_file; get a token for another principal that has rights"
        )
    return name


def _roles_of(claims: dict[str, Any], rules: TokenRules) -> frozenset[str]:
    roles = claims.get(rules.roles_claim, [])
    if isinstance(roles, str):
        roles = roles.split()
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise _wrong(f"the token's claim {rules.roles_claim!r} must be a list of roles, got {roles!r:.80}")
    if len(roles) > ROLES_MAX:
        raise _wrong(f"the token's claim {rules.roles_claim!r} must have at most {ROLES_MAX} roles, got {len(roles)}")
    for role in roles:
        _check_name(role, rules.roles_claim)
    return frozenset(roles)


def _check_name(name: str, claim: str) -> None:
    try:
        check_principal(name)
    except ProtocolError as error:
        raise _wrong(f"the token's claim {claim!r}: {error.message}") from None


def _wrong(message: str) -> ProtocolError:
    return ProtocolError(pb.UNAUTHENTICATED, message)
