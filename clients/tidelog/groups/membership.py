"""The state of a group membership, without I/O: heartbeats, and which partitions the member may read until when.

The coordinator sends the target assignment; the member reports the partitions it holds. The member starts to read only
partitions of the newest assignment, and reports a revoked partition as held until it has released it; only then is the
partition assigned to another member. The member counts the session from the time at which it *sent* the last answered
heartbeat, whereas the coordinator counts from the time at which it received that heartbeat. Therefore a member that
cannot reach the coordinator stops reading before its partitions are assigned to others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb

PartitionId = tuple[bytes, int]
"""Topic id and partition."""


class Change(NamedTuple):
    """The partitions that an answer newly assigns to the member, and those that it revokes."""

    assigned: frozenset[PartitionId]
    revoked: frozenset[PartitionId]


NO_CHANGE = Change(frozenset(), frozenset())


@dataclass(slots=True)
class Membership:
    """Tracks one membership: the assignment, the partitions that are read, and the session.

    A fenced member starts another membership with a new id.

    Attributes:
        member_id: 16 to 64 letters and digits, random for each membership.
        wish: the requested group settings.
        ended_member_id: member id of the previous membership of this process, which no longer reads anything; "" if
            this is the first membership.
        generation: the group's generation that the coordinator reported last; sent with commits.
        assigned: the target assignment that the coordinator has sent last.
        held: partitions that the member has begun to read and not released.
        names: topic id -> name of the assigned topics.
        wants_loads: whether the coordinator has asked for the load of each partition.
    """

    group: str
    member_id: str
    wish: pb.GroupWish
    session_s: float
    ended_member_id: str = ""
    generation: int = 0
    assigned: frozenset[PartitionId] = frozenset()
    held: set[PartitionId] = field(default_factory=set[PartitionId])
    names: dict[bytes, str] = field(default_factory=dict[bytes, str])
    wants_loads: bool = False
    _revision: int = 0
    _is_joined: bool = False
    _ends_at: float = 0.0

    @property
    def is_joined(self) -> bool:
        """Whether the coordinator has accepted the member."""
        return self._is_joined

    def heartbeat(self, *, wait_ms: int, loads: Mapping[PartitionId, float] | None = None) -> pb.GroupHeartbeat:
        """Return the heartbeat to send now.

        Args:
            wait_ms: how long the coordinator may hold the answer back.
            loads: bytes per second read of each partition; partitions that are not held are left out.
                None: report no loads.
        """
        heartbeat = pb.GroupHeartbeat(group=self.group, member_id=self.member_id, wait_ms=wait_ms)
        if not self._is_joined:
            heartbeat.join.CopyFrom(self.wish)
            heartbeat.ended_member_id = self.ended_member_id
            return heartbeat
        heartbeat.seen_revision = self._revision
        heartbeat.held.extend(by_topic(self.held))
        for place, rate in (loads or {}).items():
            if place in self.held:
                heartbeat.loads.add(topic_id=place[0], partition=place[1], bytes_per_s=rate)
        return heartbeat

    def leaving(self) -> pb.GroupHeartbeat:
        """Return the last heartbeat of a member that has released all partitions."""
        return pb.GroupHeartbeat(group=self.group, member_id=self.member_id, leave=True)

    def stopping(self) -> pb.GroupHeartbeat:
        """Return the last heartbeat of a static member, whose partitions stay reserved until its session expires."""
        return pb.GroupHeartbeat(group=self.group, member_id=self.member_id, stopped=True)

    def answered(self, reply: pb.GroupHeartbeatReply, *, sent_at: float, now: float) -> Change:
        """Apply the answer to a heartbeat that was sent at `sent_at`; return the change of the assignment.

        An answer is ignored if its revision is lower than that of an applied answer, or if it arrives after the session
        has expired.
        """
        if now >= sent_at + self.session_s:
            return NO_CHANGE
        self._is_joined = True
        self._ends_at = max(self._ends_at, sent_at + self.session_s)
        if reply.revision < self._revision:
            return NO_CHANGE
        self.wants_loads = reply.wants_loads
        self.generation = max(self.generation, reply.generation)
        if reply.unchanged:
            return NO_CHANGE
        self._revision = reply.revision
        self.names = {topic.topic_id: topic.topic for topic in reply.assigned}
        self.assigned = frozenset((topic.topic_id, number) for topic in reply.assigned for number in topic.partitions)
        return Change(self.assigned - self.held, frozenset(self.held - self.assigned))

    def begin(self, places: Iterable[PartitionId], *, now: float) -> frozenset[PartitionId]:
        """Note that the member begins to read partitions; return those that it may read now."""
        may = frozenset() if self.is_over(now) else frozenset(places) & self.assigned - self.held
        self.held |= may
        return may

    def released(self, places: Collection[PartitionId]) -> None:
        """Note that the member has released partitions, after its last commit of them."""
        self.held.difference_update(places)

    def is_over(self, now: float) -> bool:
        """Return whether the session has expired without an answer, so that other members may read the partitions."""
        return self._is_joined and now >= self._ends_at

    @property
    def ends_at(self) -> float:
        """The `session_time` at which the session expires unless a heartbeat is answered; 0 before the first answer."""
        return self._ends_at


def by_topic(places: Iterable[PartitionId]) -> list[pb.TopicPartitions]:
    """Return partitions in wire form: grouped by topic, in order."""
    topics: dict[bytes, pb.TopicPartitions] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, pb.TopicPartitions(topic_id=topic_id)).partitions.append(partition)
    return list(topics.values())
