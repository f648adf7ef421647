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

from tidelog_broker.core.groups.rebalancing import Assignment, rebalance_steps, subscribers_by_topic
from tidelog_broker.core.groups.steps import STEP, Steps, complete
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

_GAIN_MIN: Final = 0.1
"""Assignor BY_LOAD ignores differences below this fraction of a member's mean load, because rates fluctuate."""
_IDLE_WEIGHT: Final = 0.01
"""Minimum weight of a partition as a fraction of the mean, so that idle partitions are distributed, too."""


@dataclass(frozen=True, slots=True)
class AssignmentInput:
    """The input of an assignor.

    Attributes:
        members: subscribed topic ids by member; the order breaks ties.
        partitions: all partitions to assign, in order.
        has: the member to which a partition is currently assigned.
        loads: bytes per second by partition, finite and >= 0; a missing load counts as the mean of the known ones.
    """

    members: Mapping[str, frozenset[bytes]]
    partitions: Sequence[PartitionKey]
    has: Mapping[PartitionKey, str] = field(default_factory=dict[PartitionKey, str])
    loads: Mapping[PartitionKey, float] = field(default_factory=dict[PartitionKey, float])


def assign(assignor: pb.Assignor, inputs: AssignmentInput) -> Assignment:
    """Return the assignment of the partitions to the members.

    Args:
        assignor: the assignor to use; STICKY if it is unset or unknown.
        inputs: the members, the partitions to assign, and their current members and loads.
    """
    return complete(assign_steps(assignor, inputs))


def assign_steps(assignor: pb.Assignor, inputs: AssignmentInput) -> Steps[Assignment]:
    """Compute the assignment in steps; see `assign`. The input must not change meanwhile."""
    return _ASSIGNORS.get(assignor, _sticky)(inputs)


def _round_robin(inputs: AssignmentInput) -> Steps[Assignment]:
    """Assign partitions in turn; a member that is skipped for lack of a subscription is considered first next time."""
    assignment: Assignment = {member: set() for member in inputs.members}
    waiting = list(inputs.members)
    looked_at = 0
    for key in inputs.partitions:
        for at, member in enumerate(waiting):
            looked_at += 1
            if key[0] in inputs.members[member]:
                assignment[member].add(key)
                waiting.append(waiting.pop(at))
                break
        if looked_at >= STEP:
            looked_at = 0
            yield
    return assignment


def _range(inputs: AssignmentInput) -> Steps[Assignment]:
    """Assign a contiguous range of every topic to each member, so that topics are co-partitioned."""
    assignment: Assignment = {member: set() for member in inputs.members}
    by_topic: dict[bytes, list[PartitionKey]] = defaultdict(list)
    for key in inputs.partitions:
        by_topic[key[0]].append(key)
    yield
    done = 0
    subscribers = yield from subscribers_by_topic(inputs.members, by_topic)
    for topic_id, members in subscribers.items():
        keys = by_topic[topic_id]
        for at, key in enumerate(keys if members else ()):
            assignment[members[((at + 1) * len(members) - 1) // len(keys)]].add(key)
            done += 1
            if not done % STEP:
                yield
    return assignment


def _sticky(inputs: AssignmentInput) -> Steps[Assignment]:
    """Balance the numbers of partitions with as few moves as possible."""
    weighed = {key: (inputs.has.get(key), 1.0) for key in inputs.partitions}
    yield
    return (yield from rebalance_steps(inputs.members, weighed, gain_min=1.0))


def _by_load(inputs: AssignmentInput) -> Steps[Assignment]:
    """Balance the members' loads; without known loads, balance their numbers of partitions."""
    known = [inputs.loads[key] for key in inputs.partitions if key in inputs.loads]
    if sum(known) < 1:  # less than one byte per second in total is not worth balancing
        return (yield from _sticky(inputs))
    yield
    mean = sum(known) / len(known)
    weighed = {
        key: (inputs.has.get(key), max(inputs.loads.get(key, mean), _IDLE_WEIGHT * mean)) for key in inputs.partitions
    }
    yield
    share = sum(weight for _, weight in weighed.values()) / max(len(inputs.members), 1)
    yield
    return (yield from rebalance_steps(inputs.members, weighed, gain_min=_GAIN_MIN * share))


_ASSIGNORS: Final[dict[pb.Assignor, Callable[[AssignmentInput], Steps[Assignment]]]] = {
    pb.STICKY: _sticky,
    pb.RANGE: _range,
    pb.ROUND_ROBIN: _round_robin,
    pb.BY_LOAD: _by_load,
}
