"""Detection of a data directory that was rolled back to an older state, by the incarnations of its node.

A directory that was restored from a snapshot or a copy is consistent but has lost promises and records of its node. So
each start of a node has an *incarnation*, which the other nodes record durably before the node takes part, and each
directory keeps its own incarnations. If another node knows a later start, or a later tick of a start,
that the directory does not contain, the directory is older than the state that its node had reached.

A *tick* is a counter within an incarnation. It is incremented about once a second while the node writes, made durable
in the directory first, and then sent to the other nodes. It detects a copy of a running node, whose next start would
otherwise look like an ordinary restart.

Sans-IO: the caller makes entries durable and exchanges messages. Rejected: comparing boot counters alone, because the
start of a copy has the same counter as the next start of the original, or a higher one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_broker.core.incarnation import boot_counter
from tidelog_proto import broker_pb2 as pb

OWN_INCARNATIONS_MAX: Final = 256
"""Maximum number of earlier incarnations that a directory keeps and reports; older ones are no longer compared."""
ELSEWHERE_MAX: Final = 16
"""Maximum number of entries of each kind in `OwnIncarnations.elsewhere`: withdrawn starts, and other starts."""
INCARNATIONS_PER_MESSAGE_MAX: Final = 1000
"""Maximum number of entries in one message between nodes."""

Directory = tuple[str, bytes]
"""A node id and the id of its data directory."""


class IncarnationTick(NamedTuple):
    """An incarnation of a node, and its latest tick."""

    incarnation: int
    tick: int


@dataclass(frozen=True, slots=True)
class Claim:
    """The incarnations that a node reports for its directory.

    Attributes:
        past: earlier incarnations that contacted other nodes, each with its last durable tick.
        forgotten_below: boot counter below which incarnations are no longer listed.
    """

    incarnation: int
    past: dict[int, int]
    forgotten_below: int = 0

    def is_older_than(self, known: IncarnationTick) -> bool:
        """Return whether an incarnation recorded by another node proves the claiming directory to be an older copy."""
        if known.incarnation == self.incarnation:
            return False
        if boot_counter(known.incarnation) >= boot_counter(self.incarnation):
            return True
        if known.incarnation in self.past:
            return known.tick > self.past[known.incarnation]
        return boot_counter(known.incarnation) >= self.forgotten_below


def claim_of(incarnation: int, offered: pb.PeerIncarnations) -> Claim:
    """Return the claim in a handshake message; the sender's incarnation is already authenticated."""
    return Claim(incarnation, {start.incarnation: start.tick for start in offered.past}, offered.forgotten_below)


@dataclass(slots=True)
class OwnIncarnations:
    """The incarnations of this node's own data directory.

    Attributes:
        directory: this node's id and that of its directory.
        past: earlier incarnations that contacted other nodes, each with its last durable tick.
        forgotten_below: boot counter below which incarnations were dropped from `past`.
        elsewhere: starts that other nodes recorded for this directory and that it does not contain, with whether they
            were withdrawn before they took part. One that was not withdrawn proves this directory to be an older copy.
    """

    directory: Directory
    now: IncarnationTick
    past: dict[int, int] = field(default_factory=dict[int, int])
    forgotten_below: int = 0
    elsewhere: dict[int, bool] = field(default_factory=dict[int, bool])

    @classmethod
    def of(cls, directory: Directory, incarnation: int, kept: Iterable[IncarnationTick]) -> OwnIncarnations:
        """Return the incarnations of a directory at its next start; `kept` are the earlier ones in its journal."""
        earlier = sorted(start for start in kept if start.incarnation != incarnation)
        newest = earlier[-OWN_INCARNATIONS_MAX:]
        forgotten_below = boot_counter(newest[0].incarnation) if len(newest) == OWN_INCARNATIONS_MAX else 0
        return cls(directory, IncarnationTick(incarnation, 0), dict(newest), forgotten_below)

    def is_older_than(self, known: IncarnationTick) -> bool:
        """Return whether an incarnation recorded by another node proves this directory to be an older copy.

        A later tick of the current incarnation is proof as well: the machine was restored from a snapshot with its
        memory. Only this node can compare it, because a tick may reach another node before an earlier claim does. A
        withdrawn incarnation proves nothing, because it promised and stored nothing.
        """
        if self.is_withdrawn(known):
            return False
        if known.incarnation == self.now.incarnation:
            return known.tick > self.now.tick
        return self.claim.is_older_than(known)

    def is_withdrawn(self, known: IncarnationTick) -> bool:
        """Return whether an incarnation was withdrawn; one with a tick has taken part, so it never counts as such."""
        return known.tick == 0 and self.elsewhere.get(known.incarnation, False)

    @property
    def withdrawn(self) -> list[int]:
        """The withdrawn starts of copies of this directory."""
        return sorted(incarnation for incarnation, is_withdrawn in self.elsewhere.items() if is_withdrawn)

    @property
    def doubted_by(self) -> int:
        """The newest start in `elsewhere` that was not withdrawn, so that this node must not take part; 0 if it may."""
        return max((incarnation for incarnation, is_withdrawn in self.elsewhere.items() if not is_withdrawn), default=0)

    def note_elsewhere(self, incarnation: int, *, is_withdrawn: bool) -> list[int] | None:
        """Record a start that this directory does not contain; return the evicted ones, None if nothing changed.

        A withdrawal is final.
        """
        if incarnation in self.past or incarnation == self.now.incarnation:
            return None
        if self.elsewhere.get(incarnation) in {is_withdrawn, True}:
            return None
        doubts = len(self.elsewhere) - len(self.withdrawn)
        if not is_withdrawn and doubts >= ELSEWHERE_MAX:
            return None  # The directory is already known to be an older copy.
        self.elsewhere[incarnation] = is_withdrawn
        evicted = self.withdrawn[:-ELSEWHERE_MAX] if is_withdrawn else []
        for one in evicted:
            del self.elsewhere[one]
        return evicted

    @property
    def claim(self) -> Claim:
        """The claim that this node sends to others."""
        return Claim(self.now.incarnation, self.past, self.forgotten_below)


def why_older(own: OwnIncarnations, by: str, known: IncarnationTick, *, in_use: bool) -> str:
    """Return why this directory is refused, for its operator.

    Args:
        by: the node that has recorded `known`; "" if unknown.
        known: the incarnation that proves this directory to be an older copy.
        in_use: whether `known` is running in another process.
    """
    node_id = own.directory[0]
    contained = own.past | dict([own.now])
    counter, own_counter = boot_counter(known.incarnation), boot_counter(own.now.incarnation)
    seen_by = f"node {by!r}" if by else "another node"
    if in_use:
        proof = f"start {counter} of that node is running in another process, as node {by!r} has verified"
    elif known.incarnation in contained:
        proof = (
            f"in start {counter} that node continued to write after this copy was made (tick {known.tick}; the "
            f"directory has {contained[known.incarnation]}), as node {by!r} has recorded"
        )
    else:
        proof = (
            f"{seen_by} has recorded start {counter} of that node, which this directory does not contain (this is "
            f"its start {own_counter})"
        )
    return (
        f"the data directory is an older copy of node {node_id!r}: {proof}. This copy may lack acknowledged records, "
        "so it must not take part in the cluster. Use the newest directory of that node; if that is lost, start with "
        "--replace in an empty directory. `tidelog log` reads this one offline"
    )
