"""Evening out what the members of a group have, beginning with who has what and moving as little as that takes.

A partition moves from a fuller member to the emptiest one that has asked for its topic, as long as that makes their
difference smaller by what is worth it. Each move makes the sum of the squares of all loads smaller, so there is an end
to it. It costs about a logarithm a move: 20,000 partitions and 1,000 members are a matter of a tenth of a second.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

from tidelog_broker.core.topics import PartitionKey

Assignment = dict[str, set[PartitionKey]]
"""Member -> its partitions; every member is there."""

_Weighed = tuple[float, PartitionKey]


def even(
    members: Mapping[str, frozenset[bytes]],
    partitions: Mapping[PartitionKey, tuple[str | None, float]],
    *,
    worth: float,
) -> Assignment:
    """Return who is to have what.

    Args:
        members: by member, in the order in which equals are served, the topics that it has asked for.
        partitions: who has each, if somebody does, and its weight, which is above zero for one that may move.
        worth: above zero; by how much closer two members must come for a partition to move, in weights.
    """
    scales = _Scales(members)
    rest: list[_Weighed] = []
    for key, (member, weight) in partitions.items():
        if member is not None and key[0] in members.get(member, ()):
            scales.give(member, (weight, key))
        else:
            rest.append((weight, key))
    for weighed in sorted(rest, key=lambda each: -each[0]):
        target = scales.emptiest(weighed[1][0])
        if target is not None:
            scales.give(target, weighed)
    while scales.relieve_all(worth):
        pass
    return scales.given()


class _Scales:
    """What every member has, by topic and weight, and who of those that may have a topic has least."""

    def __init__(self, members: Mapping[str, frozenset[bytes]]) -> None:
        self._order = {member: at for at, member in enumerate(members)}
        self._members = members
        self._loads = dict.fromkeys(members, 0.0)
        self._has: dict[str, dict[bytes, list[_Weighed]]] = {member: {} for member in members}
        self._waiting: dict[bytes, list[tuple[float, int, str]]] = {}
        """Topic -> a heap of who may have it by load; what is out of date in it is dropped when it comes up."""
        for member, topics in members.items():
            for topic_id in topics:
                self._waiting.setdefault(topic_id, []).append((0.0, self._order[member], member))
        for heap in self._waiting.values():
            heapify(heap)

    def given(self) -> Assignment:
        return {member: {key for held in has.values() for _, key in held} for member, has in self._has.items()}

    def emptiest(self, topic_id: bytes) -> str | None:
        """Return who has least of those that have asked for a topic; None if nobody has."""
        heap = self._waiting.get(topic_id)
        while heap:
            load, _, member = heap[0]
            if load == self._loads[member]:
                return member
            heappop(heap)
        return None

    def give(self, member: str, weighed: _Weighed) -> None:
        insort(self._has[member].setdefault(weighed[1][0], []), weighed)
        self._change(member, weighed[0])

    def relieve_all(self, worth: float) -> bool:
        """Move, one partition at a time and always from the fullest, what is worth it; return whether anything was.

        Who was relieved to the end of what is worth it first would be given something back in the end.
        """
        moved = False
        fullest = [(-load, self._order[member], member) for member, load in self._loads.items()]
        heapify(fullest)
        while fullest:
            load, order, member = heappop(fullest)
            if -load != self._loads[member]:
                heappush(fullest, (-self._loads[member], order, member))
                continue
            best = self._best_move(member, worth)
            if best is not None:
                self._move(member, *best)
                moved = True
                heappush(fullest, (-self._loads[member], order, member))
        return moved

    def _move(self, member: str, target: str, weighed: _Weighed) -> None:
        held = self._has[member][weighed[1][0]]
        del held[bisect_left(held, weighed)]
        if not held:
            del self._has[member][weighed[1][0]]
        self._change(member, -weighed[0])
        self.give(target, weighed)

    def _best_move(self, member: str, worth: float) -> tuple[str, _Weighed] | None:
        """Return where to move what from a member: what brings two members closest."""
        best: tuple[float, str, _Weighed] | None = None
        for topic_id in sorted(self._has[member]):
            target = self.emptiest(topic_id)
            assert target is not None, "the member itself may have it"
            difference = self._loads[member] - self._loads[target]
            if difference <= 0 or (best is not None and difference <= best[0]):
                continue
            held = self._has[member][topic_id]
            # Moving w makes a difference d to |d - 2w|: the best is next to d / 2, of several the last in order.
            at = bisect_left(held, (difference / 2, (b"\xff" * 17, 0)))
            for weighed in held[max(at - 1, 0) : at + 1]:
                gain = difference - abs(difference - 2 * weighed[0])
                if gain >= 2 * worth and (best is None or gain > best[0]):
                    best = gain, target, weighed
        return None if best is None else best[1:]

    def _change(self, member: str, weight: float) -> None:
        self._loads[member] += weight
        for topic_id in self._members[member]:
            heappush(self._waiting[topic_id], (self._loads[member], self._order[member], member))
