"""The parts of probing that need no network: whose turn it is, what is under way, and how slow this node itself is."""

from __future__ import annotations

from collections.abc import Collection, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tidelog_broker.core.membership.members import Address

T = TypeVar("T")


class Chooser(Protocol):
    """What the protocol needs of `random.Random`: tests pass one with a seed."""

    def shuffle(self, items: MutableSequence[Any], /) -> None:
        """Bring the items into any order."""

    def sample(self, items: Sequence[T], count: int, /) -> list[T]:
        """Return `count` different ones of the items."""
        ...

    def randrange(self, stop: int, /) -> int:
        """Return a number from 0 to `stop - 1`."""
        ...


class Rotation:
    """Round-robin over a shuffled list, so that every member's turn comes within two rounds (SWIM, section 4.3).

    Newcomers enter at a random place of what is left of the round; the order is shuffled anew for each round.
    """

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._order: list[str] = []

    def next(self, candidates: Collection[str]) -> str | None:
        """Return whose turn it is among the candidates, None if there are none. Their order has to be repeatable."""
        while self._order:
            node_id = self._order.pop()
            if node_id in candidates:
                return node_id
        self._order = list(candidates)
        self._chooser.shuffle(self._order)
        return self._order.pop() if self._order else None

    def enter(self, node_id: str) -> None:
        """Let a newcomer have its turn in this round already."""
        if node_id not in self._order:
            self._order.insert(self._chooser.randrange(len(self._order) + 1), node_id)


@dataclass(slots=True)
class Probe:
    """The probe of this period. It stands until it is answered or the period ends."""

    target: str
    incarnation: int
    sequence: int
    ask_others_at_ms: int
    asked_others: bool = False
    nacks: int = 0


@dataclass(frozen=True, slots=True)
class Relay:
    """A probe on behalf of another member, `origin`, which gave it the number `sequence`."""

    origin_id: str
    origin: Address
    sequence: int
    target: str
    until_ms: int


class Slowness:
    """How slow this node is at the moment: 0 is well, and every step stretches its times (Lifeguard's local health).

    A node that is slow itself sees answers late and would suspect others for it. The evidence: its own timers are
    late, others had to be told that it lives, or a probe failed and not even those asked to help said anything.
    """

    def __init__(self, most: int) -> None:
        self.value = 0
        self._most = most

    def worse(self) -> None:
        """Note a sign of slowness."""
        self.value = min(self.value + 1, self._most)

    def better(self) -> None:
        """Note a sign of health: a probe was answered in time."""
        self.value = max(self.value - 1, 0)

    def stretch(self, time_ms: int) -> int:
        """Return a time as it is to be waited now."""
        return time_ms * (1 + self.value)
