"""The interface of the server that a connection belongs to."""

from __future__ import annotations

from typing import Any, Protocol

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.wire.arriving import Arriving
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.outgoing import Outgoing
from tidelog_broker.wire.rounds import Rounds
from tidelog_proto.process.busy_poll import IdlePoll

Connection = Any
Request = Any
"""Those of `wire.connection`, which imports this module."""


class ConnectionHost(Protocol):
    """The server that a connection belongs to."""

    settings: NodeSettings
    metrics: NodeMetrics
    budget: Budget
    arriving: Arriving
    outgoing: Outgoing
    rounds: Rounds

    @property
    def idle_poll(self) -> IdlePoll:
        """Told of what comes, on all connections together."""
        ...

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""

    def greeted(self, connection: Connection) -> None:
        """A connection has said who it is."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""

    def dispatch(self, request: Request) -> None:
        """Start work on a request."""
