"""The client's side of authentication, once per connection: credentials of HELLO, and the answer to a challenge."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from tidelog.errors import InvalidRequestError, UnauthenticatedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.secret_permissions import permission_fault


class AuthenticationExchange(Protocol):
    """The authentication exchange of one connection, which `connect` performs."""

    @property
    def credentials(self) -> pb.Credentials:
        """Credentials of the first HELLO."""
        ...

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:
        """Return the credentials of the second HELLO, which answers the node's challenge.

        Raises:
            UnauthenticatedError: the challenge cannot be answered.
        """
        ...

    def check(self, reply: pb.HelloReply) -> None:
        """Verify the node's proof of identity.

        Raises:
            UnauthenticatedError: the proof is missing or wrong.
        """


class Authenticator(Protocol):
    """A client's credentials: begins an authentication exchange for each connection."""

    async def shown(self) -> AuthenticationExchange:
        """Begin the exchange of one connection.

        Raises:
            InvalidRequestError: the credentials are missing or cannot be used.
            NodeUnreachableError: the function that returns the token failed; a later call may succeed.
        """
        ...


class SingleStepExchange:
    """Authenticates a connection with credentials that need no challenge: an API key or a token.

    Args:
        credentials: sent with HELLO.
    """

    def __init__(self, credentials: pb.Credentials) -> None:
        self.credentials = credentials

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:  # noqa: ARG002 - see `AuthenticationExchange`
        """See `AuthenticationExchange`."""
        raise UnauthenticatedError(
            "the node requires a user name and password, but this client has other credentials; pass "
            "credentials=Password(user, password)"
        )

    def check(self, reply: pb.HelloReply) -> None:
        """See `AuthenticationExchange`."""


class SecretFile:
    """A file that contains only a secret, read again for each use.

    Args:
        what: name of the secret, for messages.
        chars_max: maximum length in characters; the content after `chars_max` + 1 characters is ignored.
        kept: value to return while the file is empty, cannot be read, or is accessible to every user.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, chars_max: int, kept: str = "") -> None:
        self._path = Path(path)
        self._what = what
        self._chars_max = chars_max
        self._kept = kept

    def text(self) -> str:
        """Return the secret; `kept` if the file is empty or unusable.

        Raises:
            InvalidRequestError: the file cannot be read, or every user may read or change it; and `kept` is empty.
        """
        try:
            return read_secret_file(self._path, self._what, self._chars_max) or self._kept
        except InvalidRequestError:
            if not self._kept:
                raise
            return self._kept

    def carried(self) -> SecretFile:
        """Return a copy for another machine, with the current content as fallback.

        Raises:
            InvalidRequestError: as `text`.
        """
        return SecretFile(self._path.absolute(), self._what, self._chars_max, self.text())


def read_secret_file(path: Path, what: str, chars_max: int) -> str:
    """Return the content of a secret's file without surrounding whitespace.

    Raises:
        InvalidRequestError: the file cannot be read, or every user may read or change it.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            complaint = permission_fault(file.fileno(), path, f"the {what}")
            text = file.read(chars_max + 1).strip()
    except OSError as error:
        raise InvalidRequestError(f"cannot read the {what} in {path}: {error.strerror}") from error
    if complaint:
        raise InvalidRequestError(complaint)
    return text


class ApiKeyAuthenticator:
    """Authenticates with an API key that a function returns for each connection; "" for no credentials."""

    def __init__(self, key: Callable[[], str]) -> None:
        self._key = key

    async def shown(self) -> AuthenticationExchange:
        """See `Authenticator`."""
        key = self._key()
        return SingleStepExchange(pb.Credentials(api_key=key) if key else pb.Credentials())


NO_CREDENTIALS: Final[Authenticator] = ApiKeyAuthenticator(str)
"""Authenticates without credentials, at nodes that require none."""
