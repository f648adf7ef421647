"""The interface by which handshakes between nodes compare their lives; see `core.lives`."""

from __future__ import annotations

from typing import Protocol

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class OldLifeError(ProtocolError):
    """This node's own data directory is an older copy, as a node of the cluster has proven."""


class HandshakeLives(Protocol):
    """The lives of this node and those that it knows of others."""

    def offer(self, peer_id: str) -> pb.PeerLife:
        """Return the own lives to send to a node, and the newest life that is known of that node.

        Raises:
            OldLifeError: this node is about to end.
        """
        ...

    async def meet(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> None:
        """Compare lives with a node that has proven itself; return when its life is noted durably here.

        Raises:
            OldLifeError: that node knows a later life of this node's directory.
            ProtocolError: FORBIDDEN, its directory is an older copy; EPOCH_CHANGING, the link has to wait until a life
                is withdrawn.
        """

    def withdrawal_noted(self, by: str) -> OldLifeError:
        """Take the answer of a node that has dropped this node's life, as `offer` says; return the error to raise."""
        ...

    def refuted(self, by: str, known: pb.KnownLife, *, in_use: bool) -> ProtocolError:
        """Take the proof of a node that this directory is an older copy. Return the error to raise.

        It is an OldLifeError, and this node ends, unless the life that the other node names proves nothing, or may
        still be withdrawn.
        """
        ...
