"""Incarnations of other data directories that a node knows: the newest valid one of each, and withdrawals.

An incarnation is one start of a node. A start whose process ends before it *takes part* (no vote, no acknowledgement,
nothing sent by its replicas) has promised and stored nothing. Its process announces this with a *withdrawal*. A node
that receives a withdrawal returns to the newest earlier start that it knows, with its tick, as if the withdrawn start
had not happened.

The known state of a directory does not depend on the order in which starts and withdrawals are received:

- The newest start that was not withdrawn is valid.
- A start with a tick has taken part, so a withdrawal of it is ignored, also if it was received before the tick.
- Starts and withdrawals below the newest start with a tick are dropped, because they can never become valid.

For each directory, at most `WITHDRAWN_MAX` withdrawals are kept, further ones are ignored, and at most
`WITHDRAWN_MAX + 1` starts are kept, the highest. A start that was dropped for lack of space therefore never has to
become valid: at least one of the higher ones remains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.rollback_detection import Claim, Directory, IncarnationTick
from tidelog_proto import broker_pb2 as pb

KNOWN_MAX: Final = 4096
"""Maximum number of directories whose starts a node keeps: those of all registered nodes, and earlier ones."""
SHOWN_MAX: Final = 100
"""Maximum number of directories of one node in a handshake, because handshake frames are small."""
WITHDRAWN_MAX: Final = 4
"""Maximum number of withdrawals kept for one directory; the next start that takes part clears them."""

Starts = tuple[frozenset[int], frozenset[int]]
"""The incarnations of a directory that were not withdrawn, and those that were."""


@dataclass(slots=True)
class DirectoryIncarnations:
    """The starts and withdrawals of one directory; see the module.

    Attributes:
        ticks: ticks of the starts that were not withdrawn, by incarnation. Only the lowest can have a tick above 0,
            which proves that it took part.
        withdrawn: starts that did not take part.
    """

    ticks: dict[int, int] = field(default_factory=dict[int, int])
    withdrawn: set[int] = field(default_factory=set[int])

    @property
    def newest(self) -> IncarnationTick | None:
        """The newest valid start; None while only withdrawals are known."""
        return max(map(IncarnationTick._make, self.ticks.items()), default=None)

    @property
    def starts(self) -> Starts:
        """The known starts without their ticks."""
        return frozenset(self.ticks), frozenset(self.withdrawn)

    @property
    def highest(self) -> int:
        """The highest known incarnation, withdrawn starts included."""
        return max([*self.ticks, *self.withdrawn])

    def learn(self, starts: Iterable[IncarnationTick], withdrawn: Iterable[int]) -> bool:
        """Add starts and withdrawals; return whether anything changed."""
        before = (dict(self.ticks), set(self.withdrawn))
        for incarnation, tick in starts:
            if tick:
                self.withdrawn.discard(incarnation)
            if incarnation not in self.withdrawn:
                self.ticks[incarnation] = max(tick, self.ticks.get(incarnation, 0))
        took_part = max((incarnation for incarnation, tick in self.ticks.items() if tick), default=0)
        self.ticks = {incarnation: tick for incarnation, tick in self.ticks.items() if incarnation >= took_part}
        self.withdrawn = {incarnation for incarnation in self.withdrawn if incarnation > took_part}
        for incarnation in sorted(set(withdrawn), reverse=True):
            if incarnation > took_part and len(self.withdrawn | {incarnation}) <= WITHDRAWN_MAX:
                self.withdrawn.add(incarnation)
                self.ticks.pop(incarnation, None)
        for incarnation in sorted(self.ticks)[: -(WITHDRAWN_MAX + 1)]:
            del self.ticks[incarnation]
        return (self.ticks, self.withdrawn) != before


class KnownIncarnations:
    """The known starts of other directories, at most `KNOWN_MAX` directories."""

    def __init__(self, kept: Iterable[pb.KnownIncarnation] = ()) -> None:
        self._directories: dict[Directory, DirectoryIncarnations] = {}
        """Ordered by their last change, the one that changed least recently first."""
        self._evicted: list[Directory] = []
        for entry in kept:
            self.learn(directory_of(entry), *starts_of(entry), withdrawn=entry.withdrawn)

    def get(self, directory: Directory) -> IncarnationTick | None:
        """Return the newest valid start of a directory, None for an unknown one."""
        known = self._directories.get(directory)
        return None if known is None else known.newest

    def is_withdrawn(self, directory: Directory, incarnation: int) -> bool:
        """Return whether a start was withdrawn."""
        known = self._directories.get(directory)
        return known is not None and incarnation in known.withdrawn

    def starts(self, directory: Directory) -> Starts:
        """Return the known starts of a directory, without their ticks."""
        known = self._directories.get(directory)
        return (frozenset(), frozenset()) if known is None else known.starts

    def entry(self, directory: Directory) -> pb.KnownIncarnation:
        """Return the known starts of a directory as a message, for sending and for the journal."""
        known = self._directories[directory]
        newest = known.newest or IncarnationTick(known.highest, 0)
        entry = known_incarnation(directory, newest)
        earlier = sorted(item for item in known.ticks.items() if item[0] != newest.incarnation)
        entry.earlier.extend(pb.IncarnationTick(incarnation=incarnation, tick=tick) for incarnation, tick in earlier)
        entry.withdrawn.extend(sorted(known.withdrawn))
        return entry

    def adds_to(self, entry: pb.KnownIncarnation) -> bool:
        """Return whether this node knows a later start, or another withdrawal, of a directory than `entry` contains."""
        known = self._directories.get(directory_of(entry))
        if known is None:
            return False
        newest = known.newest
        return (newest is not None and newest > newest_of(entry)) or not known.withdrawn <= set(entry.withdrawn)

    def of_node(self, node_id: str) -> list[pb.KnownIncarnation]:
        """Return the known starts of a node's directories, limited to the `SHOWN_MAX` directories that changed last.

        The limit exists because a node that is restarted without a persistent disk has a new directory each time.
        """
        directories = [directory for directory in self._directories if directory[0] == node_id]
        return [self.entry(directory) for directory in directories[-SHOWN_MAX:]]

    def incarnations(self, node_id: str) -> set[int]:
        """Return the newest valid incarnation of each directory of a node."""
        newest = (known.newest for directory, known in self._directories.items() if directory[0] == node_id)
        return {start.incarnation for start in newest if start is not None}

    def __iter__(self) -> Iterator[Directory]:
        return iter(self._directories)

    def __contains__(self, directory: object) -> bool:
        return directory in self._directories

    def learn(self, directory: Directory, *starts: IncarnationTick, withdrawn: Iterable[int] = ()) -> bool:
        """Add starts observed by this node or reported by another; return whether anything changed.

        The higher incarnation wins at every node, so two starts that were recorded at different nodes during a network
        partition are resolved alike everywhere.
        """
        known = self._directories.get(directory)
        learned = known if known is not None else DirectoryIncarnations()
        if not learned.learn(starts, withdrawn):
            return False
        if known is not None:
            del self._directories[directory]
        elif len(self._directories) >= KNOWN_MAX:
            evicted = self._least_needed()
            del self._directories[evicted]
            self._evicted.append(evicted)
        self._directories[directory] = learned
        return True

    def _least_needed(self) -> Directory:
        """Return the directory to evict: the one with the fewest starts of the node with the most directories.

        Such a node is restarted repeatedly without a persistent disk. If no node has more than one directory, the
        directory that changed least recently is evicted.
        """
        counts = Counter(node_id for node_id, _ in self._directories)
        most = max(counts.values())
        crowded = [directory for directory in self._directories if counts[directory[0]] == most]
        if most == 1:
            return crowded[0]
        return min(crowded, key=lambda directory: boot_counter(self._directories[directory].highest))

    def take_evicted(self) -> list[Directory]:
        """Return the directories that were evicted since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def forget(self, node_ids: Collection[str]) -> list[Directory]:
        """Drop the starts of nodes that were removed from the cluster; return their directories."""
        gone = [one for one in self._directories if one[0] in node_ids]
        for directory in gone:
            del self._directories[directory]
        return gone

    def refutation(self, directory: Directory, claim: Claim) -> IncarnationTick | None:
        """Return the start that proves a claiming directory to be an older copy; None without proof."""
        known = self.get(directory)
        return known if known is not None and claim.is_older_than(known) else None


def known_incarnation(directory: Directory, start: IncarnationTick) -> pb.KnownIncarnation:
    """Return a start as a message."""
    node_id, directory_id = directory
    return pb.KnownIncarnation(
        node_id=node_id, directory_id=directory_id, incarnation=start.incarnation, tick=start.tick
    )


def directory_of(known: pb.KnownIncarnation) -> Directory:
    """Return the directory of a message."""
    return known.node_id, known.directory_id


def newest_of(known: pb.KnownIncarnation) -> IncarnationTick:
    """Return the newest start in a message."""
    return IncarnationTick(known.incarnation, known.tick)


def starts_of(known: pb.KnownIncarnation) -> list[IncarnationTick]:
    """Return the newest and earlier starts in a message; entries without an incarnation are skipped."""
    earlier = [
        IncarnationTick(start.incarnation, start.tick) for start in known.earlier[:WITHDRAWN_MAX] if start.incarnation
    ]
    return [newest_of(known), *earlier]
