"""A user's password, proven by SCRAM-SHA-256: it never leaves the program, and the node proves that it is the node."""

from __future__ import annotations

import asyncio
import base64
import secrets
from pathlib import Path
from typing import Final

from tidelog.auth.authentication_exchange import AuthenticationExchange, SecretFile
from tidelog.errors import InvalidRequestError, UnauthenticatedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.saslprep import saslprep
from tidelog_proto.auth.scram import (
    PASSWORD_CHARS_MAX,
    SCRAM_NONCE_BYTES,
    SCRAM_SALT_BYTES,
    ClientSide,
    ScramError,
    salted_password,
    user_name,
    verifier_of,
)

PASSWORD_CHARS_MIN: Final = 8


class Password:
    """Shows who knows a user's password.

    Args:
        user: the user's name.
        password: the password; or the path of a file with nothing but that in it, read again for each connection.

    Raises:
        InvalidRequestError: nobody has such a name.
    """

    def __init__(self, user: str, password: str | Path | SecretFile) -> None:
        try:
            user_name(user)
        except ValueError as error:
            raise InvalidRequestError(f"{user!r} is no name of a user: {error}") from error
        self._user = user
        if isinstance(password, Path):
            password = SecretFile(password, "password", PASSWORD_CHARS_MAX)
        self._password = password
        self._salted: tuple[tuple[str, bytes, int], bytes] | None = None

    async def shown(self) -> AuthenticationExchange:
        """See `tidelog.auth.authentication_exchange.Authenticator`."""
        password = self._password
        return _ScramExchange(self, self._user, password if isinstance(password, str) else password.text())

    def carried(self) -> Password:
        """See `tidelog.credentials.carried`."""
        password = self._password
        return Password(self._user, password if isinstance(password, str) else password.carried())

    async def salted(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return what a password is stretched to; the last one is remembered, as it takes tens of milliseconds.

        Raises:
            UnauthenticatedError: nobody has such a password.
        """
        asked = password, salt, iterations
        if self._salted is None or self._salted[0] != asked:
            try:
                self._salted = asked, await asyncio.to_thread(salted_password, *asked)
            except ValueError as error:
                raise UnauthenticatedError(f"nobody has such a password: {error}") from error
        return self._salted[1]


class _ScramExchange:
    """One connection's proof."""

    def __init__(self, source: Password, user: str, password: str) -> None:
        self._source = source
        self._password = password
        self._side = ClientSide(user, base64.b64encode(secrets.token_bytes(SCRAM_NONCE_BYTES)).decode())
        self.credentials = pb.Credentials(scram=self._side.first)

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:
        try:
            salt, iterations = self._side.challenged(challenge.scram)
        except ScramError as error:
            raise UnauthenticatedError(f"the node asks for the password in a way that is refused: {error}") from error
        return pb.Credentials(scram=self._side.final(await self._source.salted(self._password, salt, iterations)))

    def check(self, reply: pb.HelloReply) -> None:
        try:
            self._side.check(reply.scram)
        except ScramError as error:
            raise UnauthenticatedError(
                "the node has not proven that it knows the user: it is none of the cluster's, or asks nobody who "
                "they are (auth = none), and then no password is to be shown to it"
            ) from error


async def user_of(name: str, password: str, roles: tuple[str, ...] = ()) -> pb.ScramUser:
    """Return a user as nodes keep it: with what verifies the password, and without the password.

    Raises:
        InvalidRequestError: the name or the password may not be one.
    """
    try:
        if len(saslprep(password)) < PASSWORD_CHARS_MIN:
            raise InvalidRequestError(f"a password has at least {PASSWORD_CHARS_MIN} characters")
        verifier = await asyncio.to_thread(verifier_of, password, secrets.token_bytes(SCRAM_SALT_BYTES))
        return pb.ScramUser(
            name=user_name(name),
            roles=roles,
            iterations=verifier.iterations,
            salt=verifier.salt,
            stored_key=verifier.stored_key,
            server_key=verifier.server_key,
        )
    except ValueError as error:
        raise InvalidRequestError(f"that cannot be a user's name and password: {error}") from error
