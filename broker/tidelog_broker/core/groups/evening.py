"""Evening out what the members of a group have, beginning with who has what and moving as little as that takes.

A partition moves from the fullest member to the emptiest one that has asked for its topic, as long as that brings the
two closer. Each move makes the sum of the squares of all loads smaller, so there is an end to it.

Topics for which the same members have asked are one *kind*: mostly there is one for all. A kind knows its emptiest
member by a heap whose entries may be out of date, but never say more than a member has; so a load that grows costs
nothing, and one that has shrunk an entry a kind. That makes a move a matter of microseconds, however many topics.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from tidelog_broker.core.topics import PartitionKey

Assignment = dict[str, set[PartitionKey]]
"""Member -> its partitions; every member is there."""

_Weighed = tuple[float, PartitionKey]


def askers(members: Mapping[str, frozenset[bytes]], topics: Iterable[bytes]) -> dict[bytes, Sequence[str]]:
    """Return who has asked for each topic, in order; topics for which the same members have share one list."""
    by_wish: dict[frozenset[bytes], list[str]] = {}
    for member, wanted in members.items():
        by_wish.setdefault(wanted, []).append(member)
    wishes = list(by_wish)
    order = {member: at for at, member in enumerate(members)}
    kinds: dict[tuple[int, ...], Sequence[str]] = {}
    found: dict[bytes, Sequence[str]] = {}
    for topic_id in topics:
        if topic_id not in found:
            kind = tuple(at for at, wanted in enumerate(wishes) if topic_id in wanted)
            if kind not in kinds:
                kinds[kind] = sorted((each for at in kind for each in by_wish[wishes[at]]), key=order.__getitem__)
            found[topic_id] = kinds[kind]
    return found


def even(
    members: Mapping[str, frozenset[bytes]],
    partitions: Mapping[PartitionKey, tuple[str | None, float]],
    *,
    worth: float,
) -> Assignment:
    """Return who is to have what.

    Args:
        members: by member, in the order in which equals are served, the topics that it has asked for.
        partitions: who has each, if somebody does, and its weight, above zero.
        worth: above zero, in weights; members that differ by less are left as they are, and a partition that would
            make the emptier one the fuller one moves only if they come closer by that.
    """
    scales = _Scales(members, askers(members, (topic_id for topic_id, _ in partitions)), worth)
    rest: list[_Weighed] = []
    for key, (member, weight) in partitions.items():
        if member is not None and key[0] in members.get(member, ()):
            scales.give(member, (weight, key))
        else:
            rest.append((weight, key))
    for weighed in sorted(rest, key=lambda each: -each[0]):
        target = scales.emptiest(scales.kind_of(weighed[1]))
        if target is not None:
            scales.give(target, weighed)
    while scales.level():
        pass
    return scales.given()


class _Scales:
    """What every member has, by kind of topic and weight, and who of those that may have a kind has least."""

    def __init__(
        self, members: Mapping[str, frozenset[bytes]], who: Mapping[bytes, Sequence[str]], worth: float
    ) -> None:
        self._order = {member: at for at, member in enumerate(members)}
        self._worth = worth
        self._loads = dict.fromkeys(members, 0.0)
        lists = {id(each): each for each in who.values()}
        numbers = {each: kind for kind, each in enumerate(lists)}
        self._kinds = {topic_id: numbers[id(each)] for topic_id, each in who.items()}
        self._waiting = [[(0.0, self._order[member], member) for member in each] for each in lists.values()]
        """Kind -> a heap of who may have it by load. Of each member there is an entry that says no more than it has."""
        self._may_have: dict[str, list[int]] = {member: [] for member in members}
        for kind, heap in enumerate(self._waiting):
            heapify(heap)
            for _, _, member in heap:
                self._may_have[member].append(kind)
        self._has: dict[str, dict[int, list[_Weighed]]] = {member: {} for member in members}

    def given(self) -> Assignment:
        return {member: {key for held in has.values() for _, key in held} for member, has in self._has.items()}

    def kind_of(self, key: PartitionKey) -> int:
        return self._kinds[key[0]]

    def emptiest(self, kind: int) -> str | None:
        """Return who has least of those that have asked for a kind of topic; None if nobody has."""
        heap = self._waiting[kind]
        while heap:
            load, order, member = heap[0]
            if load == self._loads[member]:
                return member
            heapreplace(heap, (self._loads[member], order, member))
        return None

    def give(self, member: str, weighed: _Weighed) -> None:
        held = self._has[member].setdefault(self.kind_of(weighed[1]), [])
        if not held or held[-1] <= weighed:  # most come in order
            held.append(weighed)
        else:
            insort(held, weighed)
        self._loads[member] += weighed[0]

    def level(self) -> bool:
        """Move what is worth it, one partition after the other, each from the fullest; return whether there was any.

        Who gives gets emptier, as a rule, and who takes fuller, so what a kind has to offer only gets worse: it is
        looked at again when it would be the next, and not at all once it offers nothing. What that overlooks comes the
        next time.
        """
        offers = {member: [(-inf, kind) for kind in sorted(has)] for member, has in self._has.items()}
        fullest = [(-self._loads[member], at, member) for member, at in self._order.items()]
        heapify(fullest)
        gave: set[str] = set()
        while fullest:
            load, at, member = fullest[0]
            if load != -self._loads[member]:
                heapreplace(fullest, (-self._loads[member], at, member))
            elif self._give_one(member, offers[member]):
                gave.add(member)
            else:
                heappop(fullest)
        for member in sorted(gave):
            for kind in self._may_have[member]:
                heappush(self._waiting[kind], (self._loads[member], self._order[member], member))
        return bool(gave)

    def _give_one(self, member: str, offers: list[tuple[float, int]]) -> bool:
        """Move what is best moved from a member, if anything is; `offers`: a heap of what its kinds offered last."""
        while offers:
            kind = offers[0][1]
            offer = self._offer(member, kind)
            if offer is None:
                heappop(offers)
                continue
            gain, at, target = offer
            heapreplace(offers, (-gain, kind))
            if offers[0][1] == kind:
                weighed = self._has[member][kind].pop(at)
                self._loads[member] -= weighed[0]
                self.give(target, weighed)
                return True
        return False

    def _offer(self, member: str, kind: int) -> tuple[float, int, str] | None:
        """Return what brings a member and the emptiest one of a kind closest: by how much, which one, and who it is."""
        target = self.emptiest(kind)
        held = self._has[member][kind]
        if target is None or not held:
            return None
        difference = self._loads[member] - self._loads[target]
        if difference < self._worth:
            return None
        # Moving w makes a difference d to |d - 2w|: the best is the last that is no more than d / 2, or the next one.
        behind = bisect_right(held, (difference / 2, (b"\xff" * 17, 0)))
        best: tuple[float, int, str] | None = None
        if behind > 0:
            best = 2 * held[behind - 1][0], behind - 1, target
        if behind < len(held) and difference - held[behind][0] >= self._worth:
            gain = 2 * (difference - held[behind][0])
            if best is None or gain > best[0]:
                best = gain, behind, target
        return best
