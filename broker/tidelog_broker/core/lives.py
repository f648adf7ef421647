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

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog_broker.core.incarnation import boot_counter
from tidelog_proto import broker_pb2 as pb

OWN_LIVES_MAX: Final = 256
"""Earlier lives that a directory keeps and shows; older ones are not compared any more."""
KNOWN_MAX: Final = 4096
"""Directories whose newest life a node keeps: those of all nodes that may be registered, and of earlier ones."""

SHOWN_MAX: Final = 100
"""Directories of one node whose newest lives are shown to it in a handshake, whose frames are small."""

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
    """

    directory: Directory
    now: NodeLife
    past: dict[int, int] = field(default_factory=dict[int, int])
    forgotten_below: int = 0

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
        Only this node can compare that, since a tick that it has just raised may overtake what it said before.
        """
        if known.incarnation == self.now.incarnation:
            return known.tick > self.now.tick
        return self.claim.is_older_than(known)

    @property
    def claim(self) -> Claim:
        """The lives that this node shows to others."""
        return Claim(self.now.incarnation, self.past, self.forgotten_below)


class KnownLives:
    """The newest life that this node knows of each other directory, of `KNOWN_MAX` at most."""

    def __init__(self, kept: Iterable[tuple[Directory, NodeLife]] = ()) -> None:
        self._newest: dict[Directory, NodeLife] = {}
        """In the order in which news of them came."""
        self._evicted: list[Directory] = []
        for directory, life in kept:
            self.learn(directory, life)

    def get(self, directory: Directory) -> NodeLife | None:
        """Return the newest life of a directory, None for one that was never met."""
        return self._newest.get(directory)

    def of_node(self, node_id: str) -> list[pb.KnownLife]:
        """Return the newest life of each directory that a node has had; of `SHOWN_MAX`, those of which came news last.

        A node may have had any number, if it is started again and again without a disk that lasts.
        """
        lives = [(directory, life) for directory, life in self._newest.items() if directory[0] == node_id]
        return [known_life(directory, life) for directory, life in lives[-SHOWN_MAX:]]

    def incarnations(self, node_id: str) -> set[int]:
        """Return the newest incarnation of each directory that a node has had."""
        return {life.incarnation for directory, life in self._newest.items() if directory[0] == node_id}

    def __iter__(self) -> Iterator[tuple[Directory, NodeLife]]:
        return iter(self._newest.items())

    def learn(self, directory: Directory, life: NodeLife) -> bool:
        """Take a life that a node was found to have, or that another node reports; return whether it is news.

        Of two lives the one with the higher incarnation counts, at every node. So two starts that were noted at
        different nodes while these could not reach each other are resolved alike everywhere.
        """
        known = self._newest.get(directory)
        if known is not None and life <= known:
            return False
        if known is not None:
            del self._newest[directory]
        elif len(self._newest) >= KNOWN_MAX:
            evicted = self._least_needed()
            del self._newest[evicted]
            self._evicted.append(evicted)
        self._newest[directory] = life
        return True

    def _least_needed(self) -> Directory:
        """Return the directory that makes room: with the fewest starts, of a node that has had most directories.

        Such a node is started again and again without a disk that lasts. Otherwise the one without news for longest.
        """
        counts = Counter(node_id for node_id, _ in self._newest)
        most = max(counts.values())
        crowded = [directory for directory in self._newest if counts[directory[0]] == most]
        if most == 1:
            return crowded[0]
        return min(crowded, key=lambda directory: boot_counter(self._newest[directory].incarnation))

    def take_evicted(self) -> list[Directory]:
        """Return the directories that had to make room since the last call."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def forget(self, node_ids: Collection[str]) -> list[Directory]:
        """Drop what is known of nodes that were removed from the cluster; return their directories."""
        gone = [one for one in self._newest if one[0] in node_ids]
        for directory in gone:
            del self._newest[directory]
        return gone

    def refutation(self, directory: Directory, claim: Claim) -> NodeLife | None:
        """Return the life that proves a claiming directory to be an older copy; None when nothing known does."""
        known = self._newest.get(directory)
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
