"""Lives of nodes: detection of a data directory that was rolled back to an older state.

A directory that was restored from a snapshot or a copy looks sound and has forgotten what its node promised and
stored since. So each start of a node (a *life*, told apart by its incarnation) is noted durably by the other nodes
before the node takes part, and each directory keeps the lives that it has had. A later life, or a later tick of a life,
that another node knows and the directory does not know proves that the directory is older than what its node did.

A *tick* counts within a life. It is raised about once a second while the node writes anything, made durable in the
directory first, and then sent to the other nodes. It detects a copy of a running node, whose next start would
otherwise compare as a plain restart.

Sans-IO: the caller makes entries durable and carries messages. Rejected: comparing boot counters alone, because the
start of a copy has the counter that the original's next start has, or a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_broker.core.incarnation import boot_counter
from tidelog_proto import broker_pb2 as pb

OWN_LIVES_MAX: Final = 256
"""Earlier lives that a directory keeps and shows; older ones are not compared any more."""
ELSEWHERE_MAX: Final = 16
"""Starts that a directory does not contain and keeps: so many that were withdrawn, and so many others."""
LIVES_PER_MESSAGE_MAX: Final = 1000
"""Lives in one message between nodes."""

Directory = tuple[str, bytes]
"""A node id and the id of its data directory."""


class NodeLife(NamedTuple):
    """One start of a node, and how far it has come."""

    incarnation: int
    tick: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The lives that a node says its directory has had.

    Attributes:
        incarnation: of the life that runs now.
        past: earlier lives during which the node spoke to other nodes, by incarnation, each with its last durable tick.
        forgotten_below: boot counter below which lives are not listed any more.
    """

    incarnation: int
    past: dict[int, int]
    forgotten_below: int = 0

    def is_older_than(self, known: NodeLife) -> bool:
        """Return whether a life that another node has noted proves the claiming directory to be an older copy."""
        if known.incarnation == self.incarnation:
            return False
        if boot_counter(known.incarnation) >= boot_counter(self.incarnation):
            return True
        if known.incarnation in self.past:
            return known.tick > self.past[known.incarnation]
        return boot_counter(known.incarnation) >= self.forgotten_below


def claim_of(incarnation: int, said: pb.PeerLife) -> Claim:
    """Return the claim in a handshake message of a node whose incarnation was proven."""
    return Claim(incarnation, {life.incarnation: life.tick for life in said.past}, said.forgotten_below)


@dataclass(slots=True)
class OwnLives:
    """The lives of this node's own directory.

    Attributes:
        directory: this node's id and that of its directory.
        now: the life that runs.
        past: earlier lives during which this node spoke to others: last durable tick by incarnation.
        forgotten_below: boot counter below which lives were dropped from `past`.
        elsewhere: starts that others have noted of this directory and that it does not contain, with whether they were
            withdrawn before they took part. One that was not proves this directory to be an older copy.
    """

    directory: Directory
    now: NodeLife
    past: dict[int, int] = field(default_factory=dict[int, int])
    forgotten_below: int = 0
    elsewhere: dict[int, bool] = field(default_factory=dict[int, bool])

    @classmethod
    def of(cls, directory: Directory, incarnation: int, kept: Iterable[NodeLife]) -> OwnLives:
        """Return the lives of a directory that starts its next one; `kept` are the earlier ones in its journal."""
        earlier = sorted(life for life in kept if life.incarnation != incarnation)
        newest = earlier[-OWN_LIVES_MAX:]
        forgotten_below = boot_counter(newest[0].incarnation) if len(newest) == OWN_LIVES_MAX else 0
        return cls(directory, NodeLife(incarnation, 0), dict(newest), forgotten_below)

    def is_older_than(self, known: NodeLife) -> bool:
        """Return whether a life that another node has noted proves this directory to be an older copy.

        So does a later tick of the life that runs: the machine was put back to a snapshot together with its memory.
        Only this node can compare that, since a tick that it has just raised may overtake what it said before. A life
        that was withdrawn proves nothing, as it promised and stored nothing.
        """
        if self.is_withdrawn(known):
            return False
        if known.incarnation == self.now.incarnation:
            return known.tick > self.now.tick
        return self.claim.is_older_than(known)

    def is_withdrawn(self, known: NodeLife) -> bool:
        """Return whether a life of this directory was withdrawn; never one that has a tick, since that took part."""
        return known.tick == 0 and self.elsewhere.get(known.incarnation, False)

    @property
    def withdrawn(self) -> list[int]:
        """The starts of copies of this directory that were withdrawn."""
        return sorted(incarnation for incarnation, is_withdrawn in self.elsewhere.items() if is_withdrawn)

    @property
    def doubted_by(self) -> int:
        """The newest start elsewhere that may have taken part, so that this directory must not; 0 without one."""
        return max((life for life, is_withdrawn in self.elsewhere.items() if not is_withdrawn), default=0)

    def note_elsewhere(self, incarnation: int, *, is_withdrawn: bool) -> list[int] | None:
        """Note a start that this directory does not contain; return the ones that make room, None if it is no news.

        A withdrawal is never taken back.
        """
        if incarnation in self.past or incarnation == self.now.incarnation:
            return None
        if self.elsewhere.get(incarnation) in {is_withdrawn, True}:
            return None
        doubts = len(self.elsewhere) - len(self.withdrawn)
        if not is_withdrawn and doubts >= ELSEWHERE_MAX:
            return None  # this directory is in doubt already
        self.elsewhere[incarnation] = is_withdrawn
        evicted = self.withdrawn[:-ELSEWHERE_MAX] if is_withdrawn else []
        for one in evicted:
            del self.elsewhere[one]
        return evicted

    @property
    def claim(self) -> Claim:
        """The lives that this node shows to others."""
        return Claim(self.now.incarnation, self.past, self.forgotten_below)
