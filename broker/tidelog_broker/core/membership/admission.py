"""Admission: when a new data directory becomes that of a founder, as a rule without I/O.

A founder's name stands in the bootstrap file, so anybody who is started under it with an empty directory looks like one
that starts for the first time; nothing on a disk that was wiped says that it has forgotten what it promised. The others
must say it. Every data directory has a random id, and each founder keeps durably, once and for all, which directory
each other founder has: it *binds* the name to it. A directory is admitted when enough other founders have bound its
founder's name to it, `binders_needed`. That a binder is new itself does not matter; that its note is durable does.

So two directories of one founder are never both admitted, whatever its operator does, as long as fewer than a majority
of the founders' disks are lost: each would need s binders, and only who has lost its disk in between binds twice. Of n
founders, whose majority is a, a - 1 may lose their disks. One of them is the founder itself, so at most a - 2 others
are in both groups, and together these have 2s - (a - 2) members or more. There are n - 1 others, so it is enough that
2s > n + a - 3. And s is n - a + 1 at least, so that the binders of any directory meet every majority that has counted
an earlier one of that founder.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog_broker.core.placement.placement import majority
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES, identity_fault
from tidelog_proto import broker_pb2 as pb


def binders_needed(founders: int) -> int:
    """Return how many of the other founders must have bound a founder to its directory before it takes part.

    Args:
        founders: how many the bootstrap file names, 1 or more.

    With one founder there is nobody to ask, and its only disk is not to be lost.
    """
    assert founders >= 1
    enough = majority(founders)
    meets_every_majority = founders - enough + 1
    never_twice = (founders + enough - 3) // 2 + 1
    return min(max(meets_every_majority, never_twice), founders - 1)


def binds_to(announce: pb.NodeAnnounce, *, bound: bytes, known: pb.NodeRecord | None) -> bytes:
    """Return the directory that a founder which asks is bound to here; the one that it names must be durable first.

    Args:
        announce: the question; its `node` is who asks, and names a directory.
        bound: the directory that stands here for it already; empty for none.
        known: the record about it that is known here.

    Returns:
        An id of 16 bytes; empty where the record says that the asker is not who it says, which it learns from that.
    """
    if bound:
        return bound
    said = announce.node
    fault = identity_fault(said.node_id, said.incarnation, said.directory_id, is_new=announce.is_new, known=known)
    return b"" if fault else said.directory_id


class Binders:
    """Who has bound this founder to its directory, as far as it knows in this life."""

    def __init__(self, node_id: str, directory_id: bytes, founders: Collection[str]) -> None:
        assert len(directory_id) == DIRECTORY_ID_BYTES
        assert node_id in founders
        self._node_id = node_id
        self._directory_id = directory_id
        self._others = frozenset(founders) - {node_id}
        self._needed = binders_needed(len(founders))
        self._bound: set[str] = set()

    def answered(self, peer: str, bound: bytes) -> str:
        """Take the answer of a node; one that is no founder, or has bound nothing, counts for nothing.

        Returns:
            Why this directory is never admitted, for its operator; empty when it may be.
        """
        if peer not in self._others or not bound:
            return ""
        if bound == self._directory_id:
            self._bound.add(peer)
            return ""
        return (
            f"the founder {peer!r} knows another data directory of {self._node_id!r}: give it that one. If that is "
            "lost, start with --replace for a new id; or, if nothing was ever written to this cluster, delete the data "
            "directories of all its founders and start them anew"
        )

    @property
    def missing(self) -> int:
        """How many more are needed."""
        return max(0, self._needed - len(self._bound))

    @property
    def waited_for(self) -> list[str]:
        """The founders that have not bound it, by id."""
        return sorted(self._others - self._bound)
