"""Descriptions of groups: names, summaries, and members with their assignments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_broker.core.groups.partition_lists import partitions_of, same_partitions
from tidelog_broker.core.groups.positions import GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB, PAGE_BYTES

PARTITIONS_BYTES: Final = 384 * KIB
"""Maximum size of the assignments in one description. Member ids and subscriptions may need as much again, and topic
names one page."""


class Descriptions:
    """Describes the groups of one partition of `__offsets`."""

    def __init__(self, *, groups: GroupRecords, positions: GroupOffsets, topics: TopicRegistry, node_id: str) -> None:
        self._records = groups
        self._positions = positions
        self._topics = topics
        self._node_id = node_id

    def names(self) -> set[str]:
        """Return the names of all groups."""
        return {*self._positions.names(), *self._records.names()}

    def check_known(self, name: str) -> None:
        """Check that a group exists.

        Raises:
            ProtocolError: UNKNOWN_GROUP.
        """
        if name not in self._positions.names() and self._records.get(name) is None:
            raise ProtocolError(
                pb.UNKNOWN_GROUP,
                f"group {name!r} does not exist: it has neither members nor positions; list the groups with: "
                "tidelog group list",
            )

    def describe(self, name: str, may_see: Callable[[str], bool] | None = None) -> pb.GroupDescribeReply:
        """Return a group's members with their held and target partitions, and the names of their topics.

        Members beyond `PARTITIONS_BYTES` are returned without partitions, and names beyond one page are omitted;
        `shortened` is set then.

        Args:
            may_see: returns whether the caller may see a topic; other topics are omitted. None shows all.

        Raises:
            ProtocolError: UNKNOWN_GROUP.
        """
        self.check_known(name)
        reply = pb.GroupDescribeReply(summary=self.summary(name))
        ids: set[bytes] = set()
        room_bytes = PARTITIONS_BYTES
        for member in self._record(name).members:
            if may_see is not None:
                member = self._visible_part(member, may_see)  # noqa: PLW2901 - the visible part of it
            room_bytes -= member.ByteSize() - member.wish.ByteSize()
            if room_bytes < 0:
                reply.shortened = True
                reply.members.add(member_id=member.member_id, wish=member.wish)
                continue
            reply.members.append(member)
            ids.update(topic.topic_id for topic in (*member.held, *member.target))
        room_bytes = PAGE_BYTES
        for topic_id in sorted(ids):
            topic_name = pb.TopicName(topic_id=topic_id, name=self._name_of(topic_id))
            room_bytes -= topic_name.ByteSize()
            if room_bytes < 0:
                reply.shortened = True
                break
            reply.topics.append(topic_name)
        return reply

    def _visible_part(self, member: pb.GroupMember, may_see: Callable[[str], bool]) -> pb.GroupMember:
        """Return a member without the topics that the caller may not see."""
        seen = pb.GroupMember()
        seen.CopyFrom(member)
        seen.wish.topics[:] = filter(may_see, member.wish.topics)
        for shown, all_of_it in ((seen.held, member.held), (seen.target, member.target)):
            del shown[:]
            shown.extend(topic for topic in all_of_it if may_see(self._name_of(topic.topic_id)))
        return seen

    def summary(self, name: str) -> pb.GroupSummary:
        """Return a group's state, its counts of members and positions, and its last commit."""
        record = self._record(name)
        moving = not all(same_partitions(member.held, member.target) for member in record.members)
        return pb.GroupSummary(
            group=name,
            generation=record.generation,
            members=len(record.members),
            positions=self._positions.count_of(name),
            assignor=record.assignor or (pb.STICKY if record.members else pb.ASSIGNOR_UNSPECIFIED),
            state="empty" if not record.members else "moving" if moving else "stable",
            coordinator=self._node_id,
            last_commit_us=self._positions.last_commit_us(name),
            creator=record.creator,
        )

    def effort(self, name: str) -> int:
        """Return the approximate number of items that are read for a group's summary."""
        return self._positions.count_of(name) + self._record(name).ByteSize() // 4

    def named(self, keys: frozenset[PartitionKey]) -> list[pb.TopicPartitions]:
        """Return partitions with the names of their topics, as many names as a page holds."""
        topics = partitions_of(keys)
        room_bytes = PAGE_BYTES
        for topic in topics:
            name = self._name_of(topic.topic_id)
            room_bytes -= len(name) + 3
            if room_bytes < 0:
                break
            topic.topic = name
        return topics

    def _record(self, name: str) -> pb.GroupRecord:
        return self._records.get(name) or pb.GroupRecord(group=name)

    def _name_of(self, topic_id: bytes) -> str:
        record = self._topics.get(topic_id)
        return "" if record is None or record.deleted else record.name
