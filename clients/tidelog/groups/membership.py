"""What a member of a consumer group says and does, without I/O: which partitions it may read, and until when.

The coordinator says what the member is to have; the member says what it has. It begins with nothing that is not in the
newest answer, and goes on naming what it is to give up until it has: only then does another member get it. It counts as
a member for its session timeout from when it *sent* the last question that was answered. The coordinator counts from
when that came, so a member that cannot be heard has stopped by itself before its partitions are another's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog_proto import broker_pb2 as pb

PartitionId = tuple[bytes, int]
"""Topic id and partition."""


class Change(NamedTuple):
    """What an answer asks of the member: to begin with some partitions, and to give others up."""

    assigned: frozenset[PartitionId]
    revoked: frozenset[PartitionId]


NO_CHANGE = Change(frozenset(), frozenset())


@dataclass(slots=True)
class Membership:
    """One membership as a member; who is fenced begins another one, with another id.

    Attributes:
        group: its name.
        member_id: 16 to 64 letters and digits, made up for this membership.
        wish: what it asks for.
        session_s: so long it is a member without an answer.
        ended_member_id: of an earlier membership of this process, which reads nothing any more; empty for the first.
        generation: to be named in commits.
        assigned: what it is to have, by the newest answer.
        held: what it has begun with and has not given up.
        names: topic id -> name, of what is assigned.
        wants_loads: whether the coordinator asked last to be told how much is read of each partition.
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
        """Whether the coordinator has taken it in."""
        return self._is_joined

    def heartbeat(self, *, wait_ms: int, loads: Mapping[PartitionId, float] | None = None) -> pb.GroupHeartbeat:
        """Return what to say now.

        Args:
            wait_ms: so long the answer may be held back.
            loads: bytes per second that are read of partitions, for a coordinator that wants to be told; of those that
                are not held nothing is heartbeat.
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
        """Return the last word of one that has given everything up."""
        return pb.GroupHeartbeat(group=self.group, member_id=self.member_id, leave=True)

    def stopping(self) -> pb.GroupHeartbeat:
        """Return the last word of a static member that has given everything up: its partitions wait for a session."""
        return pb.GroupHeartbeat(group=self.group, member_id=self.member_id, stopped=True)

    def answered(self, reply: pb.GroupHeartbeatReply, *, sent_at: float, now: float) -> Change:
        """Take an answer to a question that was sent at a time; return what it asks for.

        One that was overtaken by a newer one asks for nothing. One that has been under way for the whole session is
        none: by now the member may be one no longer.
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
        """Note that the member begins with partitions; return those of them that it may begin with by now."""
        may = frozenset() if self.is_over(now) else frozenset(places) & self.assigned - self.held
        self.held |= may
        return may

    def released(self, places: Collection[PartitionId]) -> None:
        """Note that the member reads partitions no longer, and has committed what it was going to."""
        self.held.difference_update(places)

    def is_over(self, now: float) -> bool:
        """Whether others may have the partitions by now, as nothing was heard from the coordinator for too long."""
        return self._is_joined and now >= self._ends_at

    @property
    def ends_at(self) -> float:
        """When it is over, if nothing is heard."""
        return self._ends_at


def by_topic(places: Iterable[PartitionId]) -> list[pb.TopicPartitions]:
    """Return partitions as they travel: by topic, in order."""
    topics: dict[bytes, pb.TopicPartitions] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, pb.TopicPartitions(topic_id=topic_id)).partitions.append(partition)
    return list(topics.values())
