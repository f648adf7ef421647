"""The interface between a connection and its subscriptions."""

from __future__ import annotations

from typing import Protocol

from tidelog_broker.core.security.session import Session


class SubscriptionPump(Protocol):
    """A subscription of a connection."""

    def pump(self) -> None:
        """Send what the client's credit and the node's send budget allow."""

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Add credit from the client and send what it allows."""

    def stop(self) -> None:
        """Stop sending."""

    def check(self, session: Session) -> None:
        """Check that the subscription is still allowed.

        Args:
            session: the session of the connection, or of a gateway's caller, whose subscription this call ends if it is
                refused.

        Raises:
            ProtocolError: the subscription is refused, and the connection has to end.
        """
