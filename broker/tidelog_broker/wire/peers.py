"""Incoming connections of other nodes: authentication results and delivery of their messages.

Each node connects to each other node and sends its own messages over the connection that it made (see `links`). So
there is one incoming connection per node; a new connection replaces the old one, whose loss has not been detected yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.peer_auth import Challenge, Identity
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.connection import Connection
from tidelog_broker.wire.one_way import Inbox, Received
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX

log = logging.getLogger(__name__)


class Peers:
    """Registers the authenticated incoming connections of other nodes, one per node, and closes outdated ones.

    Args:
        received: called with the one-way messages of each node, in the order in which the node sent them; dropped ones
            (see `Inbox`) are left out.
        budget: bytes of batches that have arrived and are not delivered, all peers together. A receiver that keeps
            delivered batches may count them in it, too.
        verifiers: one worker for large batches.
    """

    def __init__(
        self, identity: Identity, *, received: Received, budget: Budget, verifiers: Offload, metrics: NodeMetrics
    ) -> None:
        self.identity = identity
        self.budget = budget
        self._received = received
        self._verifiers = verifiers
        self._metrics = metrics
        self._connections: dict[str, Connection] = {}
        self._proven_by: dict[str, bytes] = {}
        """The secret that authenticated each node."""

    @property
    def connected(self) -> frozenset[str]:
        """The ids of the nodes that have a connection to this one."""
        return frozenset(self._connections)

    def welcome(self, connection: Connection, challenge: Challenge, secret: bytes) -> None:
        """Register an authenticated connection of a node, with the secret that authenticated it.

        Raises:
            ProtocolError: FORBIDDEN: a process with a later incarnation of the node is connected.
        """
        node_id, incarnation = challenge.node_id, challenge.incarnation
        old = self._connections.get(node_id)
        if old is not None and old.inbox is not None:
            if old.inbox.incarnation > incarnation:
                raise ProtocolError(
                    pb.FORBIDDEN,
                    f"another process with the node id {node_id!r} is connected, and it was started later; stop this "
                    "process, or the other one if that runs on a copy of the data directory",
                )
            old.inbox.close()  # Messages of the old connection must not be delivered after those of the new one.
            old.cut_off()
        inbox = Inbox(
            node_id,
            incarnation,
            received=self._received,
            budget=self.budget,
            verifiers=self._verifiers,
            metrics=self._metrics,
        )
        self._connections[node_id] = connection
        self._proven_by[node_id] = secret
        connection.closed_listeners.add(partial(self._lost, node_id, connection))
        connection.become_peer(inbox, frame_bytes_max=FRAME_BYTES_MAX)
        log.info("node %r is connected", node_id)

    def dismiss(self, node_id: str) -> None:
        """Close the connection of a removed node; the node learns of its removal when it reconnects."""
        connection = self._connections.get(node_id)
        if connection is not None:
            if connection.inbox is not None:
                connection.inbox.close()
            connection.cut_off()

    def dismiss_unless(self, node_id: str, is_registered: Callable[[str, int], bool]) -> None:
        """Close the connection of a node unless `is_registered` accepts the incarnation that opened it."""
        connection = self._connections.get(node_id)
        inbox = connection.inbox if connection is not None else None
        if inbox is not None and not is_registered(node_id, inbox.incarnation):
            self.dismiss(node_id)

    def secrets_changed(self) -> int:
        """Close the connections that were authenticated by a secret that is no longer valid; return their number."""
        doubtful = [node_id for node_id, secret in self._proven_by.items() if secret not in self.identity.secrets]
        for node_id in doubtful:
            self._connections[node_id].abort(
                ProtocolError(
                    pb.UNAUTHENTICATED, "the secret of this connection is no longer valid; reconnect with the new one"
                )
            )
        return len(doubtful)

    def _lost(self, node_id: str, connection: Connection) -> None:
        if self._connections.get(node_id) is connection:
            del self._connections[node_id], self._proven_by[node_id]
            log.info("node %r is disconnected", node_id)
