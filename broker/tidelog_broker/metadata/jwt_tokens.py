"""JWT bearers (RFC 7519): who shows a token that the issuer has signed for this cluster is whom the token names.

The signature is judged before anything that the token says. What a caller is told of a token that does not count is
which of its claims is wrong, never the token. The administrator of the settings is nobody that a token may name: who
that is would be decided by the issuer's users, as far as they choose their names.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jwt

from tidelog_broker.core.security.permissions import Permissions, check_principal
from tidelog_broker.core.security.session import Session
from tidelog_broker.metadata.credential_work import CredentialWork
from tidelog_broker.metadata.jwks import BY_JWT, Jwks
from tidelog_broker.metadata.jwt_keys import KEY_ID_CHARS_MAX, SigningKey
from tidelog_broker.metadata.security_limits import ROLES_MAX
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import TOKEN_BYTES_MAX

EXPIRES_S_MAX: Final = 253_402_300_799
"""The end of the year 9999; a larger number is refused, as it is probably in milliseconds."""

_PLAIN: Final[dict[type[Exception], str]] = {
    jwt.ImmatureSignatureError: "the token is for later: its nbf or iat has not come yet",
    jwt.InvalidIssuerError: "the token is of another issuer than jwt_issuer",
    jwt.InvalidAudienceError: "the token is for another audience than jwt_audience",
    jwt.InvalidAlgorithmError: "the token is signed by an algorithm that its key is not for",
    jwt.InvalidSignatureError: "the token's signature is wrong",
}


class TokenRules(NamedTuple):
    """What a token has to say.

    Attributes:
        issuer, audience: of the token.
        leeway_s: how far the clocks of issuer and node may be apart.
        principal_claim, roles_claim: where the caller's name and roles stand.
        admin: whom no token may name.
    """

    issuer: str
    audience: str
    leeway_s: int
    principal_claim: str
    roles_claim: str
    admin: str


class JwtTokens:
    """See the module.

    Args:
        jwks: the keys.
        rules: what else has to be right.
        permissions: the rules for who is found to be somebody.
        work: verifies signatures.
    """

    def __init__(self, jwks: Jwks, rules: TokenRules, *, permissions: Permissions, work: CredentialWork) -> None:
        self._jwks = jwks
        self._rules = rules
        self._permissions = permissions
        self._work = work

    async def session_of(self, token: str, *, address: str) -> Session:
        """Return the session of who has shown this token, from this address; it ends with the token.

        Raises:
            ProtocolError: UNAUTHENTICATED or CREDENTIALS_EXPIRED, saying what is wrong; OVERLOADED or EPOCH_CHANGING
                where that cannot be found out at the moment.
        """
        if len(token.encode()) > TOKEN_BYTES_MAX:
            raise ProtocolError(pb.UNAUTHENTICATED, f"a token has at most {TOKEN_BYTES_MAX} bytes")
        key = await self._jwks.key(_key_id_of(token))
        claims = await self._work.call(address, _verified, token, key, self._rules)
        principal, roles = _principal_of(claims, self._rules), _roles_of(claims, self._rules)
        if self._jwks.has_ended(BY_JWT + key.fingerprint):  # while the signature was looked at
            raise _wrong("the token is signed with a key that its issuer does not publish any more")
        return Session(
            self._permissions,
            principal,
            roles,
            identity=BY_JWT + key.fingerprint,
            expires_us=min(int(claims["exp"]) + self._rules.leeway_s, EXPIRES_S_MAX) * 1_000_000,
        )


def _key_id_of(token: str) -> str | None:
    """Return the id of the key that a token says it is signed with; nothing is believed yet."""
    try:
        key_id = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise _wrong("this is no JWT") from None
    if key_id is not None and not 1 <= len(key_id) <= KEY_ID_CHARS_MAX:
        raise _wrong(f"the id of a token's key (kid) has 1 to {KEY_ID_CHARS_MAX} characters")
    return key_id


def _verified(token: str, key: SigningKey, rules: TokenRules) -> dict[str, Any]:
    """Return what a token says. Takes about a millisecond; call it on a worker."""
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
        raise ProtocolError(pb.CREDENTIALS_EXPIRED, "the token has expired: get a new one, and connect again") from None
    except jwt.MissingRequiredClaimError as error:
        raise _wrong(f"the token lacks the claim {error.claim!r}") from None
    except Exception as error:  # noqa: BLE001 - whatever a caller's token breaks, it is no token that counts
        raise _wrong(_PLAIN.get(type(error), "this is no JWT that this node takes")) from None
    _check_times(claims)
    return claims


def _check_times(claims: dict[str, Any]) -> None:
    """Refuse times that are no numbers (RFC 7519, 2: NumericDate): the library reads text and booleans as such, too."""
    for claim in ("exp", "nbf", "iat"):
        said = claims.get(claim, 0)
        if type(said) not in {int, float} or not 0 <= said <= EXPIRES_S_MAX:  # of the exact type: True is an int
            raise _wrong(
                f"the token's claim {claim!r} is no time: it is a number of seconds since 1970, up to {EXPIRES_S_MAX}"
            )


def _principal_of(claims: dict[str, Any], rules: TokenRules) -> str:
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str):
        raise _wrong(f"the token's claim {rules.principal_claim!r} names nobody")
    _check_name(name, rules.principal_claim)
    if name == rules.admin:
        raise _wrong("a token does not make the administrator of the settings: give rights to another principal")
    return name


def _roles_of(claims: dict[str, Any], rules: TokenRules) -> frozenset[str]:
    roles = claims.get(rules.roles_claim, [])
    if isinstance(roles, str):
        roles = roles.split()
    if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
        raise _wrong(f"the token's claim {rules.roles_claim!r} is no list of roles")
    if len(roles) > ROLES_MAX:
        raise _wrong(f"the token's claim {rules.roles_claim!r} has more than {ROLES_MAX} roles")
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
