"""Authenticator who one is, once for each connection: what a greeting carries, and what a challenge is answered with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from tidelog.errors import InvalidRequestError, UnauthenticatedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.secret_permissions import complaint_about


class AuthenticationExchange(Protocol):
    """What one connection shows."""

    @property
    def credentials(self) -> pb.Credentials:
        """What the greeting carries."""
        ...

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:
        """Return what the second greeting carries, behind a node's challenge.

        Raises:
            UnauthenticatedError: there is no answer to that.
        """
        ...

    def check(self, reply: pb.HelloReply) -> None:
        """Judge whether the node that greets back is one to speak to.

        Raises:
            UnauthenticatedError: it should have proven who it is, and has not.
        """


class Authenticator(Protocol):
    """How a client shows who it is."""

    async def shown(self) -> AuthenticationExchange:
        """Begin with one connection.

        Raises:
            InvalidRequestError: there is nothing that could be shown.
            NodeUnreachableError: a function that gives tokens could not, just now.
        """
        ...


class SingleStepExchange:
    """Credentials that are shown in one go: keys and tokens.

    Args:
        credentials: what the greeting carries.
    """

    def __init__(self, credentials: pb.Credentials) -> None:
        self.credentials = credentials

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:  # noqa: ARG002 - see `AuthenticationExchange`
        """See `AuthenticationExchange`."""
        raise UnauthenticatedError("the node asks for a password, and this client has shown something else")

    def check(self, reply: pb.HelloReply) -> None:
        """See `AuthenticationExchange`."""


class SecretFile:
    """A file with nothing but a secret in it, read again each time.

    Args:
        path: of the file.
        what: is in it, for messages.
        chars_max: what counts of it.
        kept: the secret as it was; it counts while the file is not to be had, or open to everybody.
    """

    def __init__(self, path: str | os.PathLike[str], what: str, chars_max: int, kept: str = "") -> None:
        self._path = Path(path)
        self._what = what
        self._chars_max = chars_max
        self._kept = kept

    def text(self) -> str:
        """Return the secret.

        Raises:
            InvalidRequestError: the file cannot be read, or everybody may read or change it.
        """
        try:
            return read_secret_file(self._path, self._what, self._chars_max) or self._kept
        except InvalidRequestError:
            if not self._kept:
                raise
            return self._kept

    def carried(self) -> SecretFile:
        """Return the same for where the file may not be: with what it holds now.

        Raises:
            InvalidRequestError: as `text`.
        """
        return SecretFile(self._path.absolute(), self._what, self._chars_max, self.text())


def read_secret_file(path: Path, what: str, chars_max: int) -> str:
    """Return what stands in a file of a secret, without spaces and line ends around it.

    Raises:
        InvalidRequestError: it cannot be read, or everybody may read or change it.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            complaint = complaint_about(file.fileno(), path, f"the {what}")
            text = file.read(chars_max + 1).strip()
    except OSError as error:
        raise InvalidRequestError(f"cannot read the {what} in {path}: {error.strerror}") from error
    if complaint:
        raise InvalidRequestError(complaint)
    return text


class ApiKeyAuthenticator:
    """Shows an API key that is asked for at each connection; empty: nothing."""

    def __init__(self, key: Callable[[], str]) -> None:
        self._key = key

    async def shown(self) -> AuthenticationExchange:
        """See `Authenticator`."""
        key = self._key()
        return SingleStepExchange(pb.Credentials(api_key=key) if key else pb.Credentials())


NO_CREDENTIALS: Final[Authenticator] = ApiKeyAuthenticator(str)
"""For nodes that ask nobody who they are."""
