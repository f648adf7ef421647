"""Password authentication with SCRAM-SHA-256, in which client and node prove to each other that they know the password.

An unknown user gets an answer that looks like a real one: a salt derived from the name and from a secret that all nodes
share, the same number of iterations, and the same refusal after the same work.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from typing import Final

from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.registry import ADMIN_BY_RECORD, USER, SecurityRegistry
from tidelog_broker.core.security.session import Session
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import (
    ITERATIONS,
    SCRAM_NONCE_BYTES,
    SCRAM_SALT_BYTES,
    ScramError,
    ServerSide,
    Verifier,
    opened,
)
from tidelog_proto.errors import ProtocolError

_REFUSED: Final = "the user name or the password is wrong, or the user was deleted"


class ScramLogins:
    """Performs password logins at one node."""

    def __init__(self, registry: SecurityRegistry) -> None:
        self._registry = registry
        self._own_secret = secrets.token_bytes(32)

    def begin(self, message: str) -> Login:
        """Begin an exchange with a client's first message.

        Raises:
            ProtocolError: UNAUTHENTICATED, the message is invalid.
        """
        nonce = base64.b64encode(secrets.token_bytes(SCRAM_NONCE_BYTES)).decode()
        return self._begun(message, nonce)

    def go_on(self, sealed: pb.SealedLogin) -> Login | None:
        """Continue a login that may have begun at another node; return None if its user has changed.

        Raises:
            ProtocolError: see `begin`.
        """
        login = self._begun(sealed.first, sealed.nonce)
        return login if login.user_id == sealed.user_id else None

    def _begun(self, message: str, nonce: str) -> Login:
        try:
            opening = opened(message)
        except ScramError as error:
            raise _malformed_error(error) from error
        made_up = self._fake_verifier(opening.name)
        user = self._registry.user(opening.name)
        verifier = made_up
        if user is not None:
            verifier = Verifier(user.iterations, user.salt, user.stored_key, user.server_key)
        return Login(ServerSide(opening, nonce, verifier), "" if user is None else user.user_id)

    def finish(self, login: Login, message: str) -> tuple[Session, str]:
        """Verify the client's final message; return the session of the user, and the node's signature as its own proof.

        Raises:
            ProtocolError: UNAUTHENTICATED.
        """
        try:
            signature = login.side.final(message)
        except ScramError as error:
            raise _malformed_error(error) from error
        user = self._registry.user(login.side.opening.name)
        if signature is None or user is None or user.user_id != login.user_id:
            raise ProtocolError(pb.UNAUTHENTICATED, _REFUSED)
        if self._registry.permissions.is_admin(user.name):  # The administrator logs in with a key of the file instead.
            raise ProtocolError(pb.UNAUTHENTICATED, ADMIN_BY_RECORD)
        session = Session(self._registry.permissions, user.name, frozenset(user.roles), identity=USER + user.user_id)
        return session, signature

    def has_changed(self, login: Login) -> bool:
        """Return whether the user exists and was changed after the exchange began, which should then begin again."""
        user = self._registry.user(login.side.opening.name)
        return user is not None and user.user_id != login.user_id

    def _fake_verifier(self, name: str) -> Verifier:
        secret = self._registry.scram_secret() or self._own_secret

        def derived(label: bytes) -> bytes:
            return hmac.digest(secret, label + name.encode(), "sha256")

        return Verifier(ITERATIONS, derived(b"salt")[:SCRAM_SALT_BYTES], derived(b"stored"), derived(b"server"))


def _malformed_error(error: ScramError) -> ProtocolError:
    return ProtocolError(pb.UNAUTHENTICATED, f"the client's SCRAM-SHA-256 message is invalid: {error}")
