"""State of SWIM probing: probe rotation, outstanding probes and relays, and local health."""

from __future__ import annotations

from collections.abc import Collection, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidelog_broker.core.membership.members import Address

T = TypeVar("T")


class RandomSource(Protocol):
    """The methods of `random.Random` that the protocol uses; tests pass a seeded instance."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Shuffle the items in place."""

    def sample(self, items: Sequence[T], count: int, /) -> list[T]:
        """Return `count` distinct items."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop - 1`."""
        ...


class Rotation:
    """Round-robin over a shuffled list, so that every member is probed within two rounds (SWIM, section 4.3).

    New members are inserted at a random position in the rest of the round; each round has a new order.
    """

    def __init__(self, chooser: RandomSource) -> None:
        self._chooser = chooser
        self._order: list[str] = []

    def next(self, candidates: Collection[str]) -> str | None:
        """Return the next candidate, None without candidates. The order of `candidates` must be deterministic."""
        while self._order:
            node_id = self._order.pop()
            if node_id in candidates:
                return node_id
        self._order = list(candidates)
        self._chooser.shuffle(self._order)
        return self._order.pop() if self._order else None

    def enter(self, node_id: str) -> None:
        """Insert a new member into the current round."""
        if node_id not in self._order:
            self._order.insert(self._chooser.randrange(len(self._order) + 1), node_id)


@dataclass(slots=True)
class Probe:
    """The probe of the current period, outstanding until it is answered or the period ends."""

    target: str
    incarnation: int
    sequence: int
    ask_others_at_ms: int
    asked_others: bool = False
    nacks: int = 0


@dataclass(frozen=True, slots=True)
class Relay:
    """A probe on behalf of another member, `origin`, whose request had the number `sequence`."""

    origin_id: str
    origin: Address
    sequence: int
    target: str
    until_ms: int


class Slowness:
    """Local health as in Lifeguard: 0 is healthy, and every step lengthens the timeouts of this node.

    A slow node receives answers late and would suspect healthy members. Signs of slowness are late timers, suspicions
    of this node, and failed probes for which no helper sent a Nack.
    """

    def __init__(self, most: int) -> None:
        self.value = 0
        self._most = most

    def worse(self) -> None:
        """Record a sign of slowness."""
        self.value = min(self.value + 1, self._most)

    def better(self) -> None:
        """Record a sign of health: a probe was answered in time."""
        self.value = max(self.value - 1, 0)

    def stretch(self, time_ms: int) -> int:
        """Return a timeout, scaled by the current slowness."""
        return time_ms * (1 + self.value)
