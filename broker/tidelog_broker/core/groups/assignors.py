"""Assignors of a consumer group: pure functions from members and partitions to an assignment.

All have the same input and output, so a group may change its assignor at any time. All are deterministic, and none
assigns a partition to two members or to a member that has not subscribed to its topic. A partition whose topic has no
subscriber stays unassigned.

`sticky` and `load` start from the current assignment and move only what is needed for balance, so that a member that
joins or leaves moves as few partitions as possible. `range` and `round_robin` depend only on names and numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tidelog_broker.core.groups.rebalancing import Assignment, rebalance, subscribers_by_topic
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

_GAIN_MIN: Final = 0.1
"""Assignor BY_LOAD ignores differences below this fraction of a member's mean load, because rates fluctuate."""
_IDLE_WEIGHT: Final = 0.01
"""Minimum weight of a partition as a fraction of the mean, so that idle partitions are distributed, too."""


@dataclass(frozen=True, slots=True)
class AssignmentInput:
    """Input of an assignor.

    Attributes:
        members: subscribed topic ids by member; the order breaks ties.
        partitions: all partitions to assign, in order.
        has: the member to which a partition is currently assigned.
        loads: load by partition, finite and >= 0, in any unit; a missing load counts as the mean of the known ones.
    """

    members: Mapping[str, frozenset[bytes]]
    partitions: Sequence[PartitionKey]
    has: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    loads: Mapping[PartitionKey, float] = field(default_factory=dict[PartitionKey, float])


def assign(assignor: pb.Assignor, question: AssignmentInput) -> Assignment:
    """Return the assignment.

    Args:
        assignor: the assignor to use; STICKY if it is unset or unknown.
        question: the input.
    """
    return _ASSIGNORS.get(assignor, _sticky)(question)


def _round_robin(asked: AssignmentInput) -> Assignment:
    """Assign partitions in turn; a member that is skipped for lack of a subscription is considered first next time."""
    given: Assignment = {member: set() for member in asked.members}
    waiting = list(asked.members)
    for key in asked.partitions:
        for at, member in enumerate(waiting):
            if key[0] in asked.members[member]:
                given[member].add(key)
                waiting.append(waiting.pop(at))
                break
    return given


def _range(asked: AssignmentInput) -> Assignment:
    """Assign a contiguous range of every topic to each member, so that topics are co-partitioned."""
    given: Assignment = {member: set() for member in asked.members}
    by_topic: dict[bytes, list[PartitionKey]] = defaultdict(list)
    for key in asked.partitions:
        by_topic[key[0]].append(key)
    for topic_id, members in subscribers_by_topic(asked.members, by_topic).items():
        keys = by_topic[topic_id]
        for at, key in enumerate(keys if members else ()):
            given[members[((at + 1) * len(members) - 1) // len(keys)]].add(key)
    return given


def _sticky(asked: AssignmentInput) -> Assignment:
    """Balance the numbers of partitions with as few moves as possible."""
    return rebalance(asked.members, {key: (asked.has.get(key), 1.0) for key in asked.partitions}, gain_min=1.0)


def _by_load(asked: AssignmentInput) -> Assignment:
    """Balance loads."""
    known = [asked.loads[key] for key in asked.partitions if key in asked.loads]
    if sum(known) < 1:  # negligible in any unit
        return _sticky(asked)
    mean = sum(known) / len(known)
    weighed = {
        key: (asked.has.get(key), max(asked.loads.get(key, mean), _IDLE_WEIGHT * mean)) for key in asked.partitions
    }
    share = sum(weight for _, weight in weighed.values()) / max(len(asked.members), 1)
    return rebalance(asked.members, weighed, gain_min=_GAIN_MIN * share)


_ASSIGNORS: Final[dict[pb.Assignor, Callable[[AssignmentInput], Assignment]]] = {
    pb.STICKY: _sticky,
    pb.RANGE: _range,
    pb.ROUND_ROBIN: _round_robin,
    pb.BY_LOAD: _by_load,
}
