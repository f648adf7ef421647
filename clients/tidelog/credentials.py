"""Credentials of a client: API key, token or password, given directly, in a file, by a function or by the environment.

`Client(credentials=)` takes one of the classes here, or an API key as text. Files and functions are read for each
connection, so a replaced file takes effect with the next connection, and a client whose session has ended reconnects
with the new credentials.
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
TOKEN_FILE_VARIABLE: Final = "TIDELOG_TOKEN_FILE"  # noqa: S105 - the name of a variable
USER_VARIABLE: Final = "TIDELOG_USER"
PASSWORD_FILE_VARIABLE: Final = "TIDELOG_PASSWORD_FILE"  # noqa: S105 - as before
KEY_CHARS_MAX: Final = 1_024


class ApiKeyFile:
    """Reads an API key from a file for each connection, so that replacing the file replaces the key.

    Args:
        path: path of a file that contains only the key.
    """

    def __init__(self, path: str | os.PathLike[str] | SecretFile) -> None:
        self._file = path if isinstance(path, SecretFile) else SecretFile(path, "API key", KEY_CHARS_MAX)

    def __call__(self) -> str:
        """Return the key.

        Raises:
            InvalidRequestError: the file cannot be read, or every user may read or change it.
        """
        return self._file.text()

    def carried(self) -> ApiKeyFile:
        """See `carried`."""
        return ApiKeyFile(self._file.carried())


ApiKey = str | Callable[[], str]
"""A key, or a function that returns one for each connection."""

TokenSource = Callable[[], str | Awaitable[str]]
"""Returns a new token. A plain function runs in a thread, so it may block; an `async` function runs on the loop."""


class Token:
    """A token: a JWT signed by the issuer that the nodes trust.

    Args:
        token: the token, or a function that returns one for each connection. An exception of the function that is not
            a `TidelogError` becomes a `NodeUnreachableError`, and the next attempt to connect calls the function again.
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
                new_token: str = await self._token()
                return new_token
            token = await asyncio.to_thread(self._token)
            return token if isinstance(token, str) else await token
        except TidelogError:
            raise
        except Exception as error:
            raise NodeUnreachableError(f"the function given to Token(...) failed: {error!r}") from error


class TokenFile:
    """Reads a token from a file for each connection, for tokens that an orchestrator renews.

    Args:
        path: path of a file that contains only the token.
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
"""The type of `Client(credentials=)`."""


def asked_each_time(api_key: ApiKey | None) -> Callable[[], str]:
    """Return a function that returns the API key for a new connection.

    Args:
        api_key: None: the key of the environment; "" is returned if the environment sets none.
    """
    if api_key is None:
        path = os.environ.get(API_KEY_FILE_VARIABLE)
        if path:
            return ApiKeyFile(path)
        return lambda: os.environ.get(API_KEY_VARIABLE, "")
    if isinstance(api_key, str):
        return lambda: api_key
    return api_key


def showing(api_key: ApiKey | None = None, credentials: Credentials | None = None) -> Authenticator:
    """Return the authenticator for given credentials, or for those of the environment.

    In the environment an API key takes precedence over a token, and a token over a password.

    Raises:
        InvalidRequestError: both arguments are given, or the environment sets a user without a password file.
    """
    if api_key is not None and credentials is not None:
        raise InvalidRequestError("api_key and credentials exclude each other; pass one of them")
    if credentials is None:
        from_environment = None if api_key is not None else _of_environment()
        return from_environment or ApiKeyAuthenticator(asked_each_time(api_key))
    if isinstance(credentials, Token | TokenFile | Password):
        return credentials
    return ApiKeyAuthenticator(asked_each_time(credentials))


def carried(credentials: Credentials | None) -> Credentials | None:
    """Return credentials that can be pickled for another process, possibly on another machine.

    The other process reads credential files again, so that renewed files take effect; if a file is missing there, the
    content that it has here now is used.

    Args:
        credentials: None: the credentials of this process's environment.

    Returns:
        None if the environment sets no credentials; the other process then uses those of its own environment.

    Raises:
        InvalidRequestError: a file cannot be read, or the environment variables are contradictory.
    """
    if credentials is None:
        path = os.environ.get(API_KEY_FILE_VARIABLE)
        credentials = ApiKeyFile(path) if path else os.environ.get(API_KEY_VARIABLE) or _of_environment()
    if isinstance(credentials, ApiKeyFile | TokenFile | Password):
        return credentials.carried()
    return credentials


def _of_environment() -> TokenFile | Password | None:
    """Return the token or password that the environment sets; None if it sets neither, or also an API key."""
    if os.environ.get(API_KEY_FILE_VARIABLE) or os.environ.get(API_KEY_VARIABLE):
        return None
    if token := os.environ.get(TOKEN_FILE_VARIABLE):
        return TokenFile(token)
    user = os.environ.get(USER_VARIABLE)
    if not user:
        return None
    path = os.environ.get(PASSWORD_FILE_VARIABLE)
    if not path:
        raise InvalidRequestError(
            f"{USER_VARIABLE} is set, but {PASSWORD_FILE_VARIABLE} is not: set it to the path of the password file"
        )
    return Password(user, Path(path))


def _checked(token: str) -> str:
    """Return the token if it may be sent; the message of the error does not contain it.

    Raises:
        InvalidRequestError: the token is empty, too long or not ASCII.
    """
    if not token or not token.isascii() or len(token) > TOKEN_BYTES_MAX:
        raise InvalidRequestError(
            f"the authentication token must be 1 to {TOKEN_BYTES_MAX} bytes of ASCII text, got {len(token)} characters"
            + ("" if token.isascii() else ", some of which are not ASCII")
        )
    return token
