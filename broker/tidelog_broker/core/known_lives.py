"""Lives that a node knows of other directories: the newest that counts of each, and withdrawals.

A life that ends before it *takes part* (no vote, no acknowledgement, nothing sent by its replicas) has promised and
stored nothing that its node could lack later. Its own process says so by a *withdrawal*. A node that learns of it
returns to the newest earlier life that it knows, with the tick of that, as if the withdrawn life had never been.

The known state of a directory does not depend on the order in which lives and withdrawals are learned:

- The newest life counts that was not withdrawn.
- A life that has a tick has taken part, so a withdrawal of it is ignored, also one that was learned before the tick.
- Lives and withdrawals below the newest life with a tick are dropped: they can never count again.

Beyond `WITHDRAWN_MAX` a withdrawal is ignored, and one life more than that is kept. So a life that was dropped for lack
of room never had to count: at least one of the higher ones stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.lives import Claim, Directory, NodeLife
from tidelog_proto import broker_pb2 as pb

KNOWN_MAX: Final = 4096
"""Directories of which a node knows lives: those of all nodes that may be registered, and of earlier ones."""
SHOWN_MAX: Final = 100
"""Directories of one node whose lives are shown to it in a handshake, whose frames are small."""
WITHDRAWN_MAX: Final = 4
"""Withdrawals of one directory that are kept at once; the next life that takes part clears them."""

Starts = tuple[frozenset[int], frozenset[int]]
"""The incarnations that count of a directory, and those that were withdrawn."""


@dataclass(slots=True)
class DirectoryLives:
    """The lives and withdrawals of one directory; see the module.

    Attributes:
        ticks: of the lives that were not withdrawn, by incarnation; only the lowest may have taken part for certain.
        withdrawn: lives that did not take part.
    """

    ticks: dict[int, int] = field(default_factory=dict[int, int])
    withdrawn: set[int] = field(default_factory=set[int])

    @property
    def newest(self) -> NodeLife | None:
        """The newest life that counts; None while nothing but withdrawals is known."""
        return max(map(NodeLife._make, self.ticks.items()), default=None)

    @property
    def starts(self) -> Starts:
        """The lives that are known, without their ticks."""
        return frozenset(self.ticks), frozenset(self.withdrawn)

    @property
    def highest(self) -> int:
        """The highest incarnation that is known, also of a withdrawn life."""
        return max([*self.ticks, *self.withdrawn])

    def learn(self, lives: Iterable[NodeLife], withdrawn: Iterable[int]) -> bool:
        """Take lives and withdrawals; return whether that is news."""
        before = (dict(self.ticks), set(self.withdrawn))
        for incarnation, tick in lives:
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


class KnownLives:
    """The lives of other directories that this node knows, at most `KNOWN_MAX` directories."""

    def __init__(self, kept: Iterable[pb.KnownLife] = ()) -> None:
        self._directories: dict[Directory, DirectoryLives] = {}
        """In the order in which news of them came."""
        self._evicted: list[Directory] = []
        for entry in kept:
            self.learn(directory_of(entry), *lives_of(entry), withdrawn=entry.withdrawn)

    def get(self, directory: Directory) -> NodeLife | None:
        """Return the newest life that counts of a directory, None for one that was never met."""
        lives = self._directories.get(directory)
        return None if lives is None else lives.newest

    def is_withdrawn(self, directory: Directory, incarnation: int) -> bool:
        """Return whether a life was withdrawn."""
        lives = self._directories.get(directory)
        return lives is not None and incarnation in lives.withdrawn

    def starts(self, directory: Directory) -> Starts:
        """Return the lives that are known of a directory, without their ticks."""
        lives = self._directories.get(directory)
        return (frozenset(), frozenset()) if lives is None else lives.starts

    def entry(self, directory: Directory) -> pb.KnownLife:
        """Return what is known of a directory, as it is sent and kept."""
        lives = self._directories[directory]
        newest = lives.newest or NodeLife(lives.highest, 0)
        entry = known_life(directory, newest)
        earlier = sorted(item for item in lives.ticks.items() if item[0] != newest.incarnation)
        entry.earlier.extend(pb.Life(incarnation=incarnation, tick=tick) for incarnation, tick in earlier)
        entry.withdrawn.extend(sorted(lives.withdrawn))
        return entry

    def adds_to(self, entry: pb.KnownLife) -> bool:
        """Return whether more is known here of a directory than another node has reported."""
        lives = self._directories.get(directory_of(entry))
        if lives is None:
            return False
        newest = lives.newest
        return (newest is not None and newest > life_of(entry)) or not lives.withdrawn <= set(entry.withdrawn)

    def of_node(self, node_id: str) -> list[pb.KnownLife]:
        """Return what is known of each directory that a node has had; of `SHOWN_MAX`, those of which came news last.

        A node may have had any number, if it is started again and again without a disk that lasts.
        """
        directories = [directory for directory in self._directories if directory[0] == node_id]
        return [self.entry(directory) for directory in directories[-SHOWN_MAX:]]

    def incarnations(self, node_id: str) -> set[int]:
        """Return the newest incarnation that counts of each directory that a node has had."""
        newest = (lives.newest for directory, lives in self._directories.items() if directory[0] == node_id)
        return {life.incarnation for life in newest if life is not None}

    def __iter__(self) -> Iterator[Directory]:
        return iter(self._directories)

    def __contains__(self, directory: object) -> bool:
        return directory in self._directories

    def learn(self, directory: Directory, *lives: NodeLife, withdrawn: Iterable[int] = ()) -> bool:
        """Take lives that a node was found to have, or what another node reports; return whether it is news.

        Of two lives the one with the higher incarnation counts, at every node. So two starts that were noted at
        different nodes while these could not reach each other are resolved alike everywhere.
        """
        known = self._directories.get(directory)
        learned = known if known is not None else DirectoryLives()
        if not learned.learn(lives, withdrawn):
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
        """Return the directory that makes room: with the fewest starts, of a node that has had most directories.

        Such a node is started again and again without a disk that lasts. Otherwise the one without news for longest.
        """
        counts = Counter(node_id for node_id, _ in self._directories)
        most = max(counts.values())
        crowded = [directory for directory in self._directories if counts[directory[0]] == most]
        if most == 1:
            return crowded[0]
        return min(crowded, key=lambda directory: boot_counter(self._directories[directory].highest))

    def take_evicted(self) -> list[Directory]:
        """Return the directories that had to make room since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def forget(self, node_ids: Collection[str]) -> list[Directory]:
        """Drop what is known of nodes that were removed from the cluster; return their directories."""
        gone = [one for one in self._directories if one[0] in node_ids]
        for directory in gone:
            del self._directories[directory]
        return gone

    def refutation(self, directory: Directory, claim: Claim) -> NodeLife | None:
        """Return the life that proves a claiming directory to be an older copy; None when nothing known does."""
        known = self.get(directory)
        return known if known is not None and claim.is_older_than(known) else None


def known_life(directory: Directory, life: NodeLife) -> pb.KnownLife:
    """Return a life as it is sent and kept."""
    node_id, directory_id = directory
    return pb.KnownLife(node_id=node_id, directory_id=directory_id, incarnation=life.incarnation, tick=life.tick)


def directory_of(known: pb.KnownLife) -> Directory:
    """Return whose life it is."""
    return known.node_id, known.directory_id


def life_of(known: pb.KnownLife) -> NodeLife:
    """Return the life that was sent or kept."""
    return NodeLife(known.incarnation, known.tick)


def lives_of(known: pb.KnownLife) -> list[NodeLife]:
    """Return the lives that were sent or kept: the newest one and earlier ones; what is not a life is left out."""
    earlier = [NodeLife(life.incarnation, life.tick) for life in known.earlier[:WITHDRAWN_MAX] if life.incarnation]
    return [life_of(known), *earlier]
