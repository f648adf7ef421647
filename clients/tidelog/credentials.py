"""How a client shows who it is: a key, token or password, by hand, in a file, by a function or in the environment.

`Client(credentials=)` takes one of the classes here, or an API key as text. What gives a key or a token is asked for
each connection: whoever replaces it replaces the file, and a client whose session has ended goes on with the new one.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tidelog.auth.authentication_exchange import (
    ApiKeyAuthenticator,
    AuthenticationExchange,
    Authenticator,
    SecretFile,
    SingleStepExchange,
)
from tidelog.auth.scram_password import Password
from tidelog.errors import InvalidRequestError, NodeUnreachableError, TidelogError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TOKEN_BYTES_MAX

__all__ = [
    "ApiKey",
    "ApiKeyFile",
    "Credentials",
    "Password",
    "Token",
    "TokenFile",
    "asked_each_time",
    "carried",
    "showing",
]

API_KEY_VARIABLE: Final = "TIDELOG_API_KEY"
API_KEY_FILE_VARIABLE: Final = "TIDELOG_API_KEY_FILE"
TOKEN_FILE_VARIABLE: Final = "TIDELOG_TOKEN_FILE"  # noqa: S105 - where one is, not one
USER_VARIABLE: Final = "TIDELOG_USER"
PASSWORD_FILE_VARIABLE: Final = "TIDELOG_PASSWORD_FILE"  # noqa: S105 - as before
KEY_CHARS_MAX: Final = 1_024


class ApiKeyFile:
    """Gives the key in a file, read again for each connection: whoever replaces the key replaces the file.

    Args:
        path: of a file with nothing but the key in it.
    """

    def __init__(self, path: str | os.PathLike[str] | SecretFile) -> None:
        self._file = path if isinstance(path, SecretFile) else SecretFile(path, "API key", KEY_CHARS_MAX)

    def __call__(self) -> str:
        """Return the key.

        Raises:
            InvalidRequestError: the file cannot be read, or everybody may read or change it.
        """
        return self._file.text()

    def carried(self) -> ApiKeyFile:
        """See `carried`."""
        return ApiKeyFile(self._file.carried())


ApiKey = str | Callable[[], str]
"""A key, or what gives one each time that a connection is made."""

TokenSource = Callable[[], str | Awaitable[str]]
"""Gives a fresh token. A plain function is called on a thread, so that it may block; an `async` one on the loop."""


class Token:
    """Shows a token: a JWT that the nodes' issuer has signed.

    Args:
        token: the token, or what gives one for each connection. What that raises is told as `NodeUnreachableError`, and
            it is asked again with the next try.
    """

    def __init__(self, token: str | TokenSource) -> None:
        self._token = token

    async def shown(self) -> AuthenticationExchange:
        """See `Authenticator`."""
        return SingleStepExchange(pb.Credentials(token=_checked(await self._get())))

    async def _get(self) -> str:
        if isinstance(self._token, str):
            return self._token
        try:
            if inspect.iscoroutinefunction(self._token):
                given: str = await self._token()
                return given
            made = await asyncio.to_thread(self._token)
            return made if isinstance(made, str) else await made
        except TidelogError:
            raise
        except Exception as error:
            raise NodeUnreachableError(f"no token could be got to connect with: {error!r}") from error


class TokenFile:
    """Shows the token in a file, read again for each connection, as those that an orchestrator renews.

    Args:
        path: of a file with nothing but the token in it.
    """

    def __init__(self, path: str | os.PathLike[str] | SecretFile) -> None:
        self._file = path if isinstance(path, SecretFile) else SecretFile(path, "token", TOKEN_BYTES_MAX)

    async def shown(self) -> AuthenticationExchange:
        """See `Authenticator`."""
        return SingleStepExchange(pb.Credentials(token=_checked(self._file.text())))

    def carried(self) -> TokenFile:
        """See `carried`."""
        return TokenFile(self._file.carried())


Credentials = ApiKey | Token | TokenFile | Password
"""What `Client(credentials=)` takes."""


def asked_each_time(api_key: ApiKey | None) -> Callable[[], str]:
    """Return what gives the key of a new connection: what was given, or else what the environment names; "": none."""
    if api_key is None:
        path = os.environ.get(API_KEY_FILE_VARIABLE)
        if path:
            return ApiKeyFile(path)
        return lambda: os.environ.get(API_KEY_VARIABLE, "")
    if isinstance(api_key, str):
        return lambda: api_key
    return api_key


def showing(api_key: ApiKey | None = None, credentials: Credentials | None = None) -> Authenticator:
    """Return how a client shows who it is: as it is told, or else as the environment says.

    Of the environment an API key goes before a token, and a token before a password.

    Raises:
        InvalidRequestError: both are given, or the environment names a user without a password.
    """
    if api_key is not None and credentials is not None:
        raise InvalidRequestError("a client is given api_key or credentials, not both")
    if credentials is None:
        found = None if api_key is not None else _of_environment()
        return found or ApiKeyAuthenticator(asked_each_time(api_key))
    if isinstance(credentials, Token | TokenFile | Password):
        return credentials
    return ApiKeyAuthenticator(asked_each_time(credentials))


def carried(credentials: Credentials | None) -> Credentials | None:
    """Return how the same is shown in another process, perhaps on another machine, to which this is pickled.

    Files are looked for there, too, so that what is renewed counts; where they are not, what they hold now does.

    Args:
        credentials: None: what the environment of this process names.

    Returns:
        None where that names nothing: then that of the other process counts.

    Raises:
        InvalidRequestError: a file cannot be read, or the environment contradicts itself.
    """
    if credentials is None:
        path = os.environ.get(API_KEY_FILE_VARIABLE)
        credentials = ApiKeyFile(path) if path else os.environ.get(API_KEY_VARIABLE) or _of_environment()
    if isinstance(credentials, ApiKeyFile | TokenFile | Password):
        return credentials.carried()
    return credentials


def _of_environment() -> TokenFile | Password | None:
    """Return the token or the password that the environment names; None: neither, or an API key as well."""
    if os.environ.get(API_KEY_FILE_VARIABLE) or os.environ.get(API_KEY_VARIABLE):
        return None
    if token := os.environ.get(TOKEN_FILE_VARIABLE):
        return TokenFile(token)
    user = os.environ.get(USER_VARIABLE)
    if not user:
        return None
    path = os.environ.get(PASSWORD_FILE_VARIABLE)
    if not path:
        raise InvalidRequestError(f"{USER_VARIABLE} names a user: {PASSWORD_FILE_VARIABLE} names the password's file")
    return Password(user, Path(path))


def _checked(token: str) -> str:
    """Return a token that may be sent.

    Raises:
        InvalidRequestError: it is empty or too long; it is not told.
    """
    if not token or not token.isascii() or len(token) > TOKEN_BYTES_MAX:
        raise InvalidRequestError(f"a token has 1 to {TOKEN_BYTES_MAX} bytes of ASCII text, this one {len(token)}")
    return token
