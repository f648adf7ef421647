"""Password authentication by SCRAM-SHA-256: the password is not sent, and the node proves its identity as well."""

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
    """Authenticates with a user's password.

    Args:
        user: the user's name.
        password: the password, or the path of a file that contains only the password and is read for each connection.

    Raises:
        InvalidRequestError: the user name is invalid.
    """

    def __init__(self, user: str, password: str | Path | SecretFile) -> None:
        try:
            user_name(user)
        except ValueError as error:
            raise InvalidRequestError(f"invalid user name {user!r}: {error}") from error
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

    async def stretch(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return the salted password; the last result is cached, because computing it takes tens of milliseconds.

        Raises:
            UnauthenticatedError: the password is invalid.
        """
        inputs = password, salt, iterations
        if self._salted is None or self._salted[0] != inputs:
            try:
                self._salted = inputs, await asyncio.to_thread(salted_password, *inputs)
            except ValueError as error:
                raise UnauthenticatedError(f"the password is invalid: {error}") from error
        return self._salted[1]


class _ScramExchange:
    """The SCRAM exchange of one connection."""

    def __init__(self, source: Password, user: str, password: str) -> None:
        self._source = source
        self._user = user
        self._password = password
        self._side = ClientSide(user, base64.b64encode(secrets.token_bytes(SCRAM_NONCE_BYTES)).decode())
        self.credentials = pb.Credentials(scram=self._side.first)

    async def answer(self, challenge: pb.HelloChallenge) -> pb.Credentials:
        try:
            salt, iterations = self._side.challenged(challenge.scram)
        except ScramError as error:
            raise UnauthenticatedError(f"this client refuses the node's SCRAM challenge: {error}") from error
        return pb.Credentials(scram=self._side.final(await self._source.stretch(self._password, salt, iterations)))

    def check(self, reply: pb.HelloReply) -> None:
        try:
            self._side.check(reply.scram)
        except ScramError as error:
            raise UnauthenticatedError(
                f"the node did not prove that it has the password verifier of user {self._user!r} "
                "(SCRAM server signature); check that the address belongs to your cluster. If the "
                "cluster runs with auth = none, connect without a password"
            ) from error


async def user_of(name: str, password: str, roles: tuple[str, ...] = ()) -> pb.ScramUser:
    """Return a user as nodes store it: with a verifier instead of the password.

    Raises:
        InvalidRequestError: the name or password is invalid.
    """
    what = "password"
    try:
        if len(saslprep(password)) < PASSWORD_CHARS_MIN:
            raise InvalidRequestError(
                f"a password must have at least {PASSWORD_CHARS_MIN} characters, got {len(saslprep(password))}"
            )
        verifier = await asyncio.to_thread(verifier_of, password, secrets.token_bytes(SCRAM_SALT_BYTES))
        what = f"user name {name!r}"
        return pb.ScramUser(
            name=user_name(name),
            roles=roles,
            iterations=verifier.iterations,
            salt=verifier.salt,
            stored_key=verifier.stored_key,
            server_key=verifier.server_key,
        )
    except ValueError as error:
        raise InvalidRequestError(f"invalid {what}: {error}") from error
