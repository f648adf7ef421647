"""The interface with which handshakes between nodes compare their lives; see `core.lives`."""

from __future__ import annotations

from typing import Protocol

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class OldLifeError(ProtocolError):
    """Raised when a node of the cluster has proven that this node's data directory is an older copy."""


class HandshakeLives(Protocol):
    """The lives of this node and the known lives of other nodes."""

    def offer(self, peer_id: str) -> pb.PeerLife:
        """Return the lives of this node to send to a peer, with the newest known life of that peer.

        Raises:
            OldLifeError: this node is about to stop.
        """
        ...

    async def meet(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> None:
        """Compare recorded starts with an authenticated node; return once its newest start is stored durably here.

        Raises:
            OldLifeError: the other node has recorded a later start of this data directory, so this one was rolled back.
            ProtocolError: FORBIDDEN, the other node's directory is an older copy; EPOCH_CHANGING, the other node must
                retry after a recorded start has been withdrawn.
        """

    def withdrawal_noted(self, by: str) -> OldLifeError:
        """Record that a node has dropped this node's life, as `offer` asked; return the error to raise."""
        ...

    def refuted(self, by: str, known: pb.KnownLife, *, in_use: bool) -> ProtocolError:
        """Evaluate a node's proof that this directory is an older copy; return the error to raise.

        Returns an OldLifeError, after which this node stops, unless the life that the other node names proves nothing
        or can still be withdrawn.
        """
        ...
