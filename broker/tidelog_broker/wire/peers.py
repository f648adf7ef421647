"""The other nodes of the cluster as callers: who has proven itself, and where what it sends goes.

A node calls every other one; what it has to say goes over the connection that it made itself (see `links`). So there
is one incoming connection a node, and a new one replaces the old: the old one's end has not been noticed yet.
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
from tidelog_broker.wire.inbox import Inbox, Received
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX

log = logging.getLogger(__name__)


class Peers:
    """What a node that belongs to a cluster lets other nodes do.

    Args:
        identity: who this node is to them.
        received: gets every one-way message, in the order in which its sender sent it.
        budget: bytes of batches that have arrived and are not yet delivered, all peers together. Whoever keeps
            delivered batches waiting may count them here too.
        verifiers: one worker for large batches.
        metrics: the node's.
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
        """The secret by which each of them was."""

    @property
    def connected(self) -> frozenset[str]:
        """The ids of the nodes that have a connection to this one."""
        return frozenset(self._connections)

    def welcome(self, connection: Connection, challenge: Challenge, secret: bytes) -> None:
        """Make a connection whose other end has proven itself that node's, by this secret.

        Raises:
            ProtocolError: FORBIDDEN, to an earlier start of a node than the one that is connected.
        """
        node_id, incarnation = challenge.node_id, challenge.incarnation
        old = self._connections.get(node_id)
        if old is not None and old.inbox is not None:
            if old.inbox.incarnation > incarnation:
                raise ProtocolError(
                    pb.FORBIDDEN,
                    f"a later start of the node {node_id!r} is connected: stop this process, or the copy of its data "
                    "directory",
                )
            old.inbox.close()  # nothing of it may be delivered behind what the new one brings
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
        """End the connection of a node that was removed; when it calls again, it is told."""
        connection = self._connections.get(node_id)
        if connection is not None:
            if connection.inbox is not None:
                connection.inbox.close()
            connection.cut_off()

    def dismiss_unless(self, node_id: str, is_registered: Callable[[str, int], bool]) -> None:
        """End the connection of a node unless the life that made it is the one that is noted."""
        connection = self._connections.get(node_id)
        inbox = connection.inbox if connection is not None else None
        if inbox is not None and not is_registered(node_id, inbox.incarnation):
            self.dismiss(node_id)

    def secrets_changed(self) -> int:
        """End the connections that were proven by a secret that is not valid any more, and return how many."""
        doubtful = [node_id for node_id, secret in self._proven_by.items() if secret not in self.identity.secrets]
        for node_id in doubtful:
            self._connections[node_id].abort(
                ProtocolError(
                    pb.UNAUTHENTICATED, "the secret of this connection is valid no more: connect by the new one"
                )
            )
        return len(doubtful)

    def _lost(self, node_id: str, connection: Connection) -> None:
        if self._connections.get(node_id) is connection:
            del self._connections[node_id], self._proven_by[node_id]
            log.info("the connection of node %r is gone", node_id)
