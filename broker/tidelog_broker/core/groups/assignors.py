"""Who of a consumer group's members is to read which partition: the ways there are, as functions of what is known.

Each takes the same and gives the same, so that a group may change its way at any time. All are deterministic, and
none gives a partition to two members or to one that has not asked for its topic. A partition whose topic nobody asked
for is nobody's.

`sticky` and `load` begin with who has what and move only what evens it out: a member that comes or goes costs the
others as few partitions as it can. `range` and `round_robin` look at nothing but names and numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.groups.evening import Assignment, askers, even
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

_WORTH_MOVING: Final = 0.1
"""By load, members that differ by less than so much of their mean are left alone: no rate is quite the same twice."""
_IDLE: Final = 0.01
"""By load, a partition counts as so much of the mean at least, so that those that stand idle are spread, too."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an assignment is made of.

    Attributes:
        members: by member, in the order in which equals are served, the topics that it has asked for.
        partitions: all that are to be given, in order.
        has: partition -> the member that has it now, or is to have it.
        loads: partition -> its load, finite and 0 or more, in any unit; one that is unknown counts as the mean of those
            that are known.
    """

    members: Mapping[str, frozenset[bytes]]
    partitions: Sequence[PartitionKey]
    has: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    loads: Mapping[PartitionKey, float] = field(default_factory=dict[PartitionKey, float])


def assign(assignor: pb.Assignor, question: Question) -> Assignment:
    """Return who is to have what.

    Args:
        assignor: which way; one that is unset, or unknown here, is STICKY.
        question: see there.
    """
    return _WAYS.get(assignor, _sticky)(question)


def _round_robin(asked: Question) -> Assignment:
    """Deal partitions out one by one; who has not asked for one's topic is passed over, and served first next time."""
    given: Assignment = {member: set() for member in asked.members}
    waiting = list(asked.members)
    for key in asked.partitions:
        for at, member in enumerate(waiting):
            if key[0] in asked.members[member]:
                given[member].add(key)
                waiting.append(waiting.pop(at))
                break
    return given


def _range(asked: Question) -> Assignment:
    """Give each member a run of neighbours of every topic, so that equal numbers of two topics meet at one member."""
    given: Assignment = {member: set() for member in asked.members}
    by_topic: dict[bytes, list[PartitionKey]] = defaultdict(list)
    for key in asked.partitions:
        by_topic[key[0]].append(key)
    for topic_id, members in askers(asked.members, by_topic).items():
        keys = by_topic[topic_id]
        for at, key in enumerate(keys if members else ()):
            given[members[((at + 1) * len(members) - 1) // len(keys)]].add(key)
    return given


def _sticky(asked: Question) -> Assignment:
    """Even out numbers of partitions, moving as few as that takes."""
    return even(asked.members, {key: (asked.has.get(key), 1.0) for key in asked.partitions}, worth=1.0)


def _by_load(asked: Question) -> Assignment:
    """Even out loads."""
    known = [asked.loads[key] for key in asked.partitions if key in asked.loads]
    if sum(known) < 1:  # nothing to speak of, in whatever unit
        return _sticky(asked)
    mean = sum(known) / len(known)
    weighed = {key: (asked.has.get(key), max(asked.loads.get(key, mean), _IDLE * mean)) for key in asked.partitions}
    share = sum(weight for _, weight in weighed.values()) / max(len(asked.members), 1)
    return even(asked.members, weighed, worth=_WORTH_MOVING * share)


_WAYS: Final[dict[pb.Assignor, Callable[[Question], Assignment]]] = {
    pb.STICKY: _sticky,
    pb.RANGE: _range,
    pb.ROUND_ROBIN: _round_robin,
    pb.BY_LOAD: _by_load,
}
