"""The interfaces of a connection to its server and to its subscriptions."""

from __future__ import annotations

from typing import Any, Protocol

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.read_turns import ReadTurns
from tidelog_broker.wire.send_budget import SendBudget
from tidelog_proto.flow.byte_budget import SlowSenders
from tidelog_proto.process.busy_poll import IdlePoll

Connection = Any
Request = Any
"""Placeholders for the classes of `wire.connection`, which imports this module."""


class ConnectionHost(Protocol):
    """The server that a connection belongs to."""

    settings: NodeSettings
    metrics: NodeMetrics
    budget: Budget
    slow_senders: SlowSenders
    send_budget: SendBudget
    read_turns: ReadTurns

    @property
    def idle_poll(self) -> IdlePoll:
        """Receives the arrival of data on all connections."""
        ...

    def opened(self, connection: Connection) -> None:
        """Register an accepted connection."""

    def greeted(self, connection: Connection) -> None:
        """Record that a connection has completed HELLO."""

    def closed(self, connection: Connection) -> None:
        """Remove a closed connection."""

    def dispatch(self, request: Request) -> None:
        """Start work on a request."""


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
