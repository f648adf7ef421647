"""Where callers show who they are: in `Authorization`, or in a WebSocket's first message; never in an address.

Addresses stand in the logs of every proxy on the way, and in the history of browsers. Rejected: cookies, which browsers
send for any page that asks them to.
"""

from __future__ import annotations

import base64
import binascii
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

TOKEN_CHARS_MAX: Final = 16_384
CHALLENGE: Final = 'Bearer realm="tidelog"'

"""Not Basic, too: browsers would ask for a password and then show it to every request, also of foreign pages."""
USER_CHARS_MAX: Final = 2_048
"""Of `user:password`, as it is sent."""

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
    """A user's name and password, as a caller has shown them, and what proves to nodes that they are known."""

    user: str
    password: str = field(repr=False)
    proof: Password = field(repr=False, compare=False)


Shown = pb.Credentials | UserPassword
"""What a caller has shown."""

Kind = Literal["key", "token", "password"]
"""What kind of credentials that is."""


def kind_of(shown: Shown) -> Kind:
    """Return what kind of credentials somebody has shown."""
    if isinstance(shown, UserPassword):
        return "password"
    return "token" if shown.WhichOneof("kind") == "token" else "key"


def bytes_of(shown: Shown) -> bytes:
    """Return what tells what was shown from all else that could be; a secret."""
    if isinstance(shown, UserPassword):
        return b"basic " + json.dumps([shown.user, shown.password]).encode()
    return shown.SerializeToString(deterministic=True)


def credentials_in(headers: Headers) -> Shown | None:
    """Return the credentials of a request; None when it shows none.

    Raises:
        Problem: 401, they are in a form that is not understood.
    """
    shown = headers.getlist("authorization")
    if not shown:
        return None
    if len(shown) > 1:
        raise unauthenticated("the request has several Authorization headers; send one")
    scheme, _, token = shown[0].strip().partition(" ")
    if scheme.lower() == "basic":
        return _of_basic(token.strip())
    if scheme.lower() != "bearer":
        raise unauthenticated(f"this scheme of Authorization is not understood; {_HOW}")
    return credentials_of(token.strip())


def credentials_of(token: str) -> pb.Credentials:
    """Return the credentials that a token is: an API key by how it begins, else the token of an issuer.

    Raises:
        Problem: 401, it is none.
    """
    if len(token) > TOKEN_CHARS_MAX:
        raise unauthenticated(f"the token is longer than {TOKEN_CHARS_MAX} characters")
    if not _TOKEN.fullmatch(token):
        raise unauthenticated(f"what was shown is no token; {_HOW}")
    return pb.Credentials(api_key=token) if token.startswith(KEY_PREFIX) else pb.Credentials(token=token)


def _of_basic(text: str) -> UserPassword:
    """Return the user and the password that RFC 7617 writes as base64 of `user:password` in UTF-8.

    Raises:
        Problem: 401, it is none.
    """
    if len(text) > USER_CHARS_MAX:
        raise unauthenticated(f"what was shown is longer than {USER_CHARS_MAX} characters")
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise unauthenticated("what was shown is no base64 of user:password in UTF-8") from None
    if not colon:
        raise unauthenticated("what was shown is no base64 of user:password in UTF-8")
    return user_password(user, password)


def user_password(user: str, password: str) -> UserPassword:
    """Return a user and a password as credentials.

    Raises:
        Problem: 401, nobody has such a name, or there is no password.
    """
    try:
        if not password:
            raise unauthenticated("there is no password behind the user's name")
        return UserPassword(user, password, Password(user, password))
    except InvalidRequestError as error:
        raise unauthenticated("nobody has such a name") from error


def refuse_secrets_in(query: bytes) -> None:
    """Refuse an address that has credentials in it.

    Raises:
        Problem: 400.
    """
    if not query:
        return
    try:
        fields = parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise Problem(400, "malformed_request", f"the query has more than {QUERY_FIELDS_MAX} fields") from error
    for name, value in fields:
        if name.lower() in _SECRET_NAMES or _KEY.search(value):
            raise Problem(
                400,
                "credentials_in_url",
                "credentials do not belong into an address, which stands in logs by now: revoke what was sent, and "
                f"{_HOW}, or on a WebSocket auth as the first message",
            )


def unauthenticated(why: str = f"this gateway authenticates its callers: {_HOW}") -> Problem:
    """Return the 401."""
    return Problem(401, "unauthenticated", why, headers={"WWW-Authenticate": CHALLENGE})


def refused(error: TidelogError) -> Problem:
    """Return the 401 for credentials that a node has refused."""
    problem = from_error(error)
    headers = {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'}
    return Problem(401, problem.code, problem.detail, headers=headers)
