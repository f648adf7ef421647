"""What a connection asks of the subscriptions that it has."""

from __future__ import annotations

from typing import Protocol

from tidelog_broker.core.security.session import Session


class Pushing(Protocol):
    """A subscription of this connection."""

    def pump(self) -> None:
        """Send what may be sent."""

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Take credit from the client and send what may be sent with it."""

    def stop(self) -> None:
        """Send nothing more."""

    def check(self, session: Session) -> None:
        """Look whether it may go on: of `session`, the connection's, or of the caller of a gateway, which ends it here.

        Raises:
            ProtocolError: it may not, and the connection has to end.
        """
