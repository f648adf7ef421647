"""The interfaces that a connection requires of its server and of its subscriptions."""

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
    """The interface that a connection requires of the server that has accepted it."""

    settings: NodeSettings
    metrics: NodeMetrics
    budget: Budget
    slow_senders: SlowSenders
    send_budget: SendBudget
    read_turns: ReadTurns

    @property
    def idle_poll(self) -> IdlePoll:
        """The busy polling of the event loop, which each connection notifies of arriving data."""
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
    """The interface that a connection requires of each of its subscriptions."""

    def pump(self) -> None:
        """Send what the client's credit and the node's send budget allow."""

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Add credit from the client and send what it allows."""

    def stop(self) -> None:
        """Stop sending."""

    def check(self, session: Session) -> None:
        """Check that the subscription is still allowed; end the topics that a gateway's caller may no longer read.

        Args:
            session: the session of the connection.

        Raises:
            ProtocolError: the connection's own principal may no longer read a topic, so the connection has to end.
        """
