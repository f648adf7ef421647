"""Admission of a founder's data directory, as a rule without I/O.

A founder's node id is listed in the bootstrap file, so a node that is started under that id with an empty directory
looks like one that starts for the first time. A wiped disk contains no trace of lost promises; only the other founders
know of them. Every data directory has a random id, and each founder durably records, once, the directory id of each
other founder: it *binds* the node id to that directory. A directory is admitted when `binders_needed` others have
bound its node id to it. A binder may itself be new; only the durability of its record matters.

Two directories of one founder are therefore never both admitted while fewer than a majority of the founders' disks are
lost. Each directory needs s binders, and a founder binds the same node id twice only if it lost its disk in between. Of
n founders with a majority of a, at most a - 1 may lose their disks. One of these is the founder itself, so at most
a - 2 others are in both sets of binders, and the two sets together have at least 2s - (a - 2) members. There are n - 1
others, so 2s > n + a - 3 is sufficient. Also s >= n - a + 1, so that the binders of any directory intersect every
majority that counted an earlier directory of that founder.
"""

from __future__ import annotations

from collections.abc import Collection

from tidelog_broker.core.placement.placement import majority
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES, identity_fault
from tidelog_proto import broker_pb2 as pb


def binders_needed(founders: int) -> int:
    """Return how many other founders must have bound a founder to its directory before it takes part.

    Args:
        founders: number of founders in the bootstrap file, at least 1.

    A sole founder needs no binders, and cannot survive the loss of its disk.
    """
    assert founders >= 1
    enough = majority(founders)
    meets_every_majority = founders - enough + 1
    never_twice = (founders + enough - 3) // 2 + 1
    return min(max(meets_every_majority, never_twice), founders - 1)


def directory_to_bind(announce: pb.NodeAnnounce, *, bound: bytes, known: pb.NodeRecord | None) -> bytes:
    """Return the directory id to which the announcing founder is bound; the caller makes a new binding durable first.

    Args:
        announce: the announcement; its `node` names the founder and its directory.
        bound: the directory id that this node has already bound; empty if it has bound no directory.
        known: this node's registration record of the founder; None if the founder is not registered.

    Returns:
        An id of 16 bytes; empty if the registration record contradicts the announced identity.
    """
    if bound:
        return bound
    founder = announce.node
    fault = identity_fault(
        founder.node_id, founder.incarnation, founder.directory_id, is_new=announce.is_new, known=known
    )
    return b"" if fault else founder.directory_id


class Binders:
    """The founders that are known, since this start, to have bound this founder to its directory."""

    def __init__(self, node_id: str, directory_id: bytes, founders: Collection[str]) -> None:
        assert len(directory_id) == DIRECTORY_ID_BYTES
        assert node_id in founders
        self._node_id = node_id
        self._directory_id = directory_id
        self._other_founders = frozenset(founders) - {node_id}
        self._binders_needed = binders_needed(len(founders))
        self._bound: set[str] = set()

    def answered(self, peer: str, bound: bytes) -> str:
        """Record which directory a node has bound to this id; ignore nodes that are not founders and empty answers.

        Returns:
            The reason, for the operator, why this directory can never be admitted; empty if it still can.
        """
        if peer not in self._other_founders or not bound:
            return ""
        if bound == self._directory_id:
            self._bound.add(peer)
            return ""
        return (
            f"founder {peer!r} has recorded another data directory of {self._node_id!r}: start the node with that "
            "directory. If that directory is lost, start the node with --replace, which gives it a new id; or, if "
            "nothing was ever written to this cluster, delete the data directories of all its founders and start them "
            "again"
        )

    @property
    def missing(self) -> int:
        """Number of other founders that still have to bind this founder to its directory."""
        return max(0, self._binders_needed - len(self._bound))

    @property
    def waited_for(self) -> list[str]:
        """The other founders that are not known to have bound this founder, sorted by id."""
        return sorted(self._other_founders - self._bound)
