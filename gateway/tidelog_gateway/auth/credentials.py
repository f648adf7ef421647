"""The credentials of callers: in `Authorization`, or in a WebSocket's first message; never in a URL.

URLs are stored in the logs of each proxy on the way and in the history of browsers. Cookies are not accepted, because
browsers send them with the requests of any page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl

from starlette.datastructures import Headers

from tidelog.credentials import Password
from tidelog.errors import InvalidRequestError, TidelogError
from tidelog_gateway.problems import Problem, from_error
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.api_key import KEY_PREFIX
from tidelog_proto.text.base64_text import from_base64

TOKEN_CHARS_MAX: Final = 16_384
CHALLENGE: Final = 'Bearer realm="tidelog"'
"""Value of `WWW-Authenticate`. Basic is not offered, because browsers would ask for a password and send it with
every request, also those of foreign pages."""

USER_CHARS_MAX: Final = 2_048
"""Maximum length of the base64 of `user:password`."""

_HOW: Final = "send Authorization: Bearer KEY"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")
_SECRET_NAMES: Final = frozenset(
    {"token", "access_token", "id_token", "api_key", "apikey", "api-key", "authorization", "auth", "bearer", "jwt"}
    | {"password", "secret", "ticket"}
)
_KEY: Final = re.compile(r"tlk_[a-z2-7]+_")
QUERY_FIELDS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class UserPassword:
    """A user's name and password, and the proof of the password that nodes verify."""

    user: str
    password: str = field(repr=False)
    proof: Password = field(repr=False, compare=False)


CallerCredentials = pb.Credentials | UserPassword
"""Credentials of a caller."""

CredentialsKind = Literal["key", "token", "password"]
"""Kinds of credentials."""


def credentials_kind(credentials: CallerCredentials) -> CredentialsKind:
    """Return the kind of some credentials."""
    if isinstance(credentials, UserPassword):
        return "password"
    return "token" if credentials.WhichOneof("kind") == "token" else "key"


def identity_bytes(credentials: CallerCredentials) -> bytes:
    """Return bytes that are unique to some credentials; they contain the secret."""
    if isinstance(credentials, UserPassword):
        return b"basic " + json.dumps([credentials.user, credentials.password]).encode()
    return credentials.SerializeToString(deterministic=True)


def credentials_in(headers: Headers) -> CallerCredentials | None:
    """Return the credentials of a request; None without credentials.

    Raises:
        Problem: 401, the credentials are malformed.
    """
    values = headers.getlist("authorization")
    if not values:
        return None
    if len(values) > 1:
        raise unauthenticated(f"the request has {len(values)} Authorization headers; send one")
    scheme, _, token = values[0].strip().partition(" ")
    if scheme.lower() == "basic":
        return _of_basic(token.strip())
    if scheme.lower() != "bearer":
        raise unauthenticated(f"the scheme of the Authorization header must be Bearer or Basic; {_HOW}")
    return credentials_of(token.strip())


def credentials_of(token: str) -> pb.Credentials:
    """Parse an API key, which has a known prefix, or a token of an issuer.

    Raises:
        Problem: 401, the key or token is malformed.
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise unauthenticated(f"the bearer token has {len(token)} characters, at most {TOKEN_CHARS_MAX} are allowed")
    if not token:
        raise unauthenticated(f"the bearer token is empty; {_HOW}")
    if not _TOKEN.fullmatch(token):
        raise unauthenticated(f"the bearer token has characters other than A-Z a-z 0-9 - . _ ~ + / =; {_HOW}")
    return pb.Credentials(api_key=token) if token.startswith(KEY_PREFIX) else pb.Credentials(token=token)


def _of_basic(text: str) -> UserPassword:
    """Parse the base64 of `user:password` in UTF-8 (RFC 7617).

    Raises:
        Problem: 401, the text is malformed.
    """
    if len(text) > USER_CHARS_MAX:
        raise unauthenticated(
            f"the Basic credentials have {len(text)} characters, at most {USER_CHARS_MAX} are allowed"
        )
    try:
        user, colon, password = from_base64(text).decode().partition(":")
    except ValueError:
        raise unauthenticated("the Basic credentials are not the base64 of user:password in UTF-8") from None
    if not colon:
        raise unauthenticated("the Basic credentials are not the base64 of user:password in UTF-8")
    return user_password(user, password)


def user_password(user: str, password: str) -> UserPassword:
    """Return a user and a password as credentials.

    Raises:
        Problem: 401, the name is invalid or the password is empty.
    """
    try:
        if not password:
            raise unauthenticated("the password is empty; send the user's password")
        return UserPassword(user, password, Password(user, password))
    except InvalidRequestError as error:
        raise unauthenticated(
            f"the user's name is invalid ({error.__cause__}); send the name of an existing user"
        ) from error


def refuse_secrets_in(query: bytes) -> None:
    """Refuse a URL that has credentials in its query.

    Raises:
        Problem: 400, the query has credentials, or too many fields to search.
    """
    if not query:
        return
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise Problem(
            400, "malformed_request", f"the URL's query has more than {QUERY_FIELDS_MAX} fields; send fewer"
        ) from error
    for name, value in fields:
        if name.lower() in _SECRET_NAMES or _KEY.search(value):
            raise Problem(
                400,
                "credentials_in_url",
                "the URL's query has credentials, which proxies and browsers may have logged: revoke these "
                f"credentials, and {_HOW}, or on a WebSocket the message auth first",
            )


def unauthenticated(why: str = f"this gateway authenticates its callers: {_HOW}") -> Problem:
    """Return the 401, with the challenge to send credentials by the scheme Bearer."""
    return Problem(401, "unauthenticated", why, headers={"WWW-Authenticate": CHALLENGE})


def credentials_refused(error: TidelogError) -> Problem:
    """Return the 401 for credentials that a node has refused."""
    problem = from_error(error)
    headers = {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'}
    return Problem(401, problem.code, problem.detail, headers=headers)
