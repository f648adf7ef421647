"""Balancing of the loads of group members, starting from the current assignment, with few moves.

A partition moves from the most loaded member to the least loaded subscriber of its topic while that reduces their
difference. Each move decreases the sum of the squared loads, so the algorithm terminates.

Topics with the same set of subscribers are one *kind*; usually all topics are one kind. Each kind finds its least
loaded member with a lazy heap, whose entries never exceed the real load: an increase costs nothing, a decrease one new
entry per kind. A move therefore takes microseconds, independent of the number of topics.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import Final

from tidelog_broker.core.groups.steps import STEP, Steps, complete
from tidelog_broker.core.topics import PartitionKey

Assignment = dict[str, set[PartitionKey]]
"""Partitions by member; contains every member."""

_Weighed = tuple[float, PartitionKey]

_MOVES: Final = 100
"""Number of moves in a step; each takes some microseconds."""


def subscribers_by_topic(
    members: Mapping[str, frozenset[bytes]], topics: Iterable[bytes]
) -> Steps[dict[bytes, Sequence[str]]]:
    """Find the subscribers of each topic, in member order; topics with the same subscribers share one list."""
    by_wish: dict[frozenset[bytes], list[str]] = {}
    for member, wanted in members.items():
        by_wish.setdefault(wanted, []).append(member)
    wishes = list(by_wish)
    order = {member: at for at, member in enumerate(members)}
    kinds: dict[tuple[int, ...], Sequence[str]] = {}
    found: dict[bytes, Sequence[str]] = {}
    looked_at = 0
    for topic_id in topics:
        looked_at += 1
        if topic_id not in found:
            looked_at += len(wishes) // 8
            kind = tuple(at for at, wanted in enumerate(wishes) if topic_id in wanted)
            if kind not in kinds:
                looked_at += len(members)
                kinds[kind] = sorted((each for at in kind for each in by_wish[wishes[at]]), key=order.__getitem__)
            found[topic_id] = kinds[kind]
        if looked_at >= STEP:
            looked_at = 0
            yield
    return found


def rebalance(
    members: Mapping[str, frozenset[bytes]],
    partitions: Mapping[PartitionKey, tuple[str | None, float]],
    *,
    gain_min: float,
) -> Assignment:
    """Return the balanced assignment.

    Args:
        members: subscribed topic ids by member; the order breaks ties.
        partitions: current member, if any, and weight of each partition; weights are above zero.
        gain_min: minimum improvement that justifies a move, above zero. Nothing moves between members whose loads
            differ by less. A move that would leave the target with the higher load must lower the higher of the two
            loads by at least this.
    """
    return complete(rebalance_steps(members, partitions, gain_min=gain_min))


def rebalance_steps(
    members: Mapping[str, frozenset[bytes]],
    partitions: Mapping[PartitionKey, tuple[str | None, float]],
    *,
    gain_min: float,
) -> Steps[Assignment]:
    """Compute the balanced assignment in steps; see `rebalance`. The arguments must not change meanwhile."""
    subscribers = yield from subscribers_by_topic(members, dict.fromkeys(topic_id for topic_id, _ in partitions))
    balancer = _Balancer(members, subscribers, gain_min)
    yield
    rest: list[_Weighed] = []
    for done, (key, (member, weight)) in enumerate(partitions.items(), 1):
        if not done % STEP:
            yield
        if member is not None and key[0] in members.get(member, ()):
            balancer.assign(member, (weight, key))
        else:
            rest.append((weight, key))
    rest.sort(key=lambda each: -each[0])
    for done, weighed in enumerate(rest, 1):
        if not done % STEP:
            yield
        target = balancer.least_loaded(balancer.kind_of(weighed[1]))
        if target is not None:
            balancer.assign(target, weighed)
    while (yield from balancer.move_pass()):
        yield
    yield
    return (yield from balancer.assignment())


class _Balancer:
    """The loads of members by kind of topic, and the least loaded subscriber of each kind."""

    def __init__(
        self, members: Mapping[str, frozenset[bytes]], who: Mapping[bytes, Sequence[str]], gain_min: float
    ) -> None:
        self._order = {member: at for at, member in enumerate(members)}
        self._gain_min = gain_min
        self._loads = dict.fromkeys(members, 0.0)
        lists = {id(each): each for each in who.values()}
        numbers = {each: kind for kind, each in enumerate(lists)}
        self._kinds = {topic_id: numbers[id(each)] for topic_id, each in who.items()}
        self._heaps = [[(0.0, self._order[member], member) for member in each] for each in lists.values()]
        """By kind, a heap of its subscribers by load. Each member has an entry that does not exceed its load."""
        self._kinds_of: dict[str, list[int]] = {member: [] for member in members}
        for kind, heap in enumerate(self._heaps):
            heapify(heap)
            for _, _, member in heap:
                self._kinds_of[member].append(kind)
        self._has: dict[str, dict[int, list[_Weighed]]] = {member: {} for member in members}

    def assignment(self) -> Steps[Assignment]:
        """Collect the partitions of each member."""
        assignment: Assignment = {}
        done = 0
        for member, has in self._has.items():
            assignment[member] = {key for held in has.values() for _, key in held}
            done += 1 + len(assignment[member])
            if done >= STEP:
                done = 0
                yield
        return assignment

    def kind_of(self, key: PartitionKey) -> int:
        return self._kinds[key[0]]

    def least_loaded(self, kind: int) -> str | None:
        """Return the least loaded subscriber of a kind; None without subscribers."""
        heap = self._heaps[kind]
        while heap:
            load, order, member = heap[0]
            if load == self._loads[member]:
                return member
            heapreplace(heap, (self._loads[member], order, member))
        return None

    def assign(self, member: str, weighed: _Weighed) -> None:
        held = self._has[member].setdefault(self.kind_of(weighed[1]), [])
        if not held or held[-1] <= weighed:  # the common case
            held.append(weighed)
        else:
            insort(held, weighed)
        self._loads[member] += weighed[0]

    def move_pass(self) -> Steps[bool]:
        """Move partitions from the most loaded members while that is worth it; return whether any moved.

        Usually a source gets emptier and a target fuller, so the best offer of a kind only gets worse. An offer is
        therefore recomputed only when it comes first, and a kind without an offer is dropped. Moves that this misses
        are found by the next call.
        """
        offers = {member: [(-inf, kind) for kind in sorted(has)] for member, has in self._has.items()}
        fullest = [(-self._loads[member], at, member) for member, at in self._order.items()]
        heapify(fullest)
        gave: set[str] = set()
        tried = 0
        while fullest:
            tried += 1
            if not tried % _MOVES:
                yield
            load, at, member = fullest[0]
            if load != -self._loads[member]:
                heapreplace(fullest, (-self._loads[member], at, member))
            elif self._move_one(member, offers[member]):
                gave.add(member)
            else:
                heappop(fullest)
        for member in sorted(gave):
            for kind in self._kinds_of[member]:
                heappush(self._heaps[kind], (self._loads[member], self._order[member], member))
        return bool(gave)

    def _move_one(self, member: str, offers: list[tuple[float, int]]) -> bool:
        """Make the best move from a member; return False if no move is worth it.

        `offers` is a heap of the last known gain of each kind.
        """
        while offers:
            kind = offers[0][1]
            offer = self._best_move(member, kind)
            if offer is None:
                heappop(offers)
                continue
            gain, at, target = offer
            heapreplace(offers, (-gain, kind))
            if offers[0][1] == kind:
                weighed = self._has[member][kind].pop(at)
                self._loads[member] -= weighed[0]
                self.assign(target, weighed)
                return True
        return False

    def _best_move(self, member: str, kind: int) -> tuple[float, int, str] | None:
        """Return the best move from a member to the least loaded subscriber of a kind; None if no move is worth it.

        The result is the move's gain, the index of the partition in the member's list, and the target.
        """
        target = self.least_loaded(kind)
        held = self._has[member][kind]
        if target is None or not held:
            return None
        difference = self._loads[member] - self._loads[target]
        if difference < self._gain_min:
            return None
        # Moving w changes a difference d to |d - 2w|: the best w is the largest one <= d / 2, or the next one.
        behind = bisect_right(held, (difference / 2, (b"\xff" * 17, 0)))
        best: tuple[float, int, str] | None = None
        if behind > 0:
            best = 2 * held[behind - 1][0], behind - 1, target
        if behind < len(held) and difference - held[behind][0] >= self._gain_min:
            gain = 2 * (difference - held[behind][0])
            if best is None or gain > best[0]:
                best = gain, behind, target
        return best
