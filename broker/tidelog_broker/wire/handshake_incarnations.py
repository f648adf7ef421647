"""The interface by which handshakes between nodes compare incarnations; see `core.rollback_detection`."""

from __future__ import annotations

from typing import Protocol

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class StaleDirectoryError(ProtocolError):
    """Raised when a node of the cluster has proven that this node's data directory is an older copy."""


class HandshakeIncarnations(Protocol):
    """The interface that a handshake requires of the registry of this node's and other nodes' incarnations."""

    def offer(self, peer_id: str) -> pb.PeerIncarnations:
        """Return the incarnations of this node to send to a peer, with the newest known ones of that peer.

        Raises:
            StaleDirectoryError: this directory was found to be an older copy, so this node is about to stop.
        """
        ...

    async def register(self, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> None:
        """Compare incarnations with an authenticated node; return once its current one is stored durably on this node.

        Raises:
            StaleDirectoryError: the other node has recorded a later incarnation of this data directory, so that this
                directory is an older copy.
            ProtocolError: FORBIDDEN, the other node's directory is an older copy; EPOCH_CHANGING, the other node must
                retry after a recorded start has been withdrawn.
        """

    def withdrawal_noted(self, by: str) -> StaleDirectoryError:
        """Record that a node has dropped this node's incarnation, as `offer` asked; return the error to raise."""
        ...

    def refuted(self, by: str, known: pb.KnownIncarnation, *, in_use: bool) -> ProtocolError:
        """Evaluate a node's proof that this directory is an older copy; return the error to raise.

        Returns a StaleDirectoryError, after which this node stops, unless the incarnation that the other node names
        proves nothing or can still be withdrawn.
        """
        ...
