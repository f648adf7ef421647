"""The coordinator of groups: the node that owns `__offsets` hears their members, and tells each what to read.

It knows of a group what the log says, and begins with that whenever it has become the owner: every member then has its
whole session timeout to be heard of. What a member is told is told by an owner that a quorum has confirmed since the
member asked, so a node that was the owner keeps nobody alive. A member counts from when its question came; it counts
itself from when it sent that, so it has stopped reading by the time its partitions are given to another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.membership import Group, fenced, keys_of, partitions_of
from tidelog_broker.core.groups.positions import GroupBounds, GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.groups.coordinated import Coordinated
from tidelog_broker.groups.sessions import Sessions, Who
from tidelog_broker.groups.subscriptions import Subscriptions
from tidelog_broker.metadata.state_log import OffsetsLog
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import GROUP_SESSION_MS_DEFAULT, PAGE_BYTES

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""How often silent members, changed topics and a lost ownership are looked for."""
WAIT_SHARE: Final = 3
"""An answer is held back for this part of the member's session timeout at most."""
RECONNECT_S: Final = 3.0
"""So long a member whose connection has ended may take to come back, if its session is not over before."""


class Coordinator:
    """See the module.

    Args:
        tasks: the node's.
        log: `__offsets`.
        partition: that log's partition, where it is stored here.
        groups, positions: what the log says.
        topics: those of the cluster.
        is_stopping: whether the node stops, so that nobody is to wait here.
        bounds: how much of groups there may be.
    """

    def __init__(
        self,
        *,
        tasks: Tasks,
        offsets_log: OffsetsLog,
        partition: Callable[[], Partition | None],
        groups: GroupRecords,
        positions: GroupOffsets,
        topics: TopicRegistry,
        bounds: GroupBounds,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._tasks = tasks
        self._offsets_log = offsets_log
        self._partition = partition
        self._records = groups
        self._positions = positions
        self._topics = topics
        self._bounds = bounds
        self._is_stopping = is_stopping
        self._subscriptions = Subscriptions(topics)
        self._groups: dict[str, Coordinated] = {}
        self._sessions = Sessions()
        self._epoch: int | None = None
        """The epoch of `__offsets` in which all this is known; None while this node coordinates nothing."""
        self._topics_seen = 0
        self._ticking = False

    async def ready(self, *, confirmed: bool = False) -> None:
        """Make sure that this node coordinates, beginning with what the log says if it has just come to.

        Raises:
            ProtocolError: as `StateLog.ready`.
        """
        await self._offsets_log.ready(confirmed=confirmed)
        partition = self._partition()
        assert partition is not None, "its log is ready"
        if partition.state.epoch != self._epoch:
            self._begin(partition.state.epoch)

    # ---------------------------------------------------------------------------------------------- members

    async def heartbeat(self, asked: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply:
        """Hear a member, and tell it what to read: when that is other than it has seen, or after `wait_ms`.

        Raises:
            ProtocolError: MEMBER_FENCED; INVALID_REQUEST where there is no room for a group, a member or its topics; as
                `ready`, or what the log says.
        """
        await self.ready()
        if asked.leave:
            return await self._leave(asked)
        coordinated = self._join(asked) if asked.HasField("join") else self._groups.get(asked.group)
        member = None if coordinated is None else coordinated.group.member(asked.member_id)
        if coordinated is None or member is None:
            raise fenced(asked.group)
        self._hear(asked.group, asked.member_id, member.wish)
        if asked.HasField("join"):
            await asyncio.shield(coordinated.settle())
        else:
            self._take_report(coordinated, asked)
        wait_s = min(asked.wait_ms, session_ms(member.wish) // WAIT_SHARE) / 1000
        await coordinated.news(asked.member_id, seen_revision=asked.seen_revision, wait_s=wait_s)
        await self.ready(confirmed=True)
        if self._groups.get(asked.group) is not coordinated:
            raise _elsewhere()
        told = coordinated.group.told(asked.member_id)
        if told is None:
            raise fenced(asked.group)
        if told.revision <= asked.seen_revision:
            return pb.GroupHeartbeatReply(revision=asked.seen_revision, generation=told.generation, unchanged=True)
        return pb.GroupHeartbeatReply(
            revision=told.revision, generation=told.generation, assigned=self._named(told.assigned)
        )

    def disconnected(self, group: str, member_id: str) -> None:
        """A member's connection has ended while it waited for an answer: it has a moment to come back.

        A static one has its whole session: it may be about to start again.
        """
        coordinated = self._groups.get(group)
        member = None if coordinated is None else coordinated.group.member(member_id)
        if member is not None and member.wish.instance_id:
            return
        self._sessions.shorten(Who(group, member_id), until=self._tasks.loop.time() + RECONNECT_S)

    def check_commit(self, group: str, member_id: str, generation: int, key: PartitionKey) -> None:
        """See that somebody may commit a position; the caller prepares it without waiting in between.

        Raises:
            ProtocolError: as `Group.check_commit`; EPOCH_CHANGING when this node coordinates no more.
        """
        if not self._is_coordinating:
            raise _elsewhere()
        coordinated = self._groups.get(group)
        if coordinated is not None:
            coordinated.group.check_commit(member_id, generation, key)
        elif member_id:
            raise fenced(group)

    # ----------------------------------------------------------------------------------------------- groups

    def describe(self, name: str, node_id: str) -> pb.GroupDescribeReply:
        """Return a group's members, and what each has and is to have.

        Raises:
            ProtocolError: UNKNOWN_GROUP.
        """
        self._check_known(name)
        record = self._records.get(name) or pb.GroupRecord(group=name)
        reply = pb.GroupDescribeReply(summary=self.summary(name, node_id), members=record.members)
        ids = {topic.topic_id for member in record.members for topic in (*member.held, *member.target)}
        room_bytes = PAGE_BYTES
        for topic_id in sorted(ids):
            told = pb.TopicName(topic_id=topic_id, name=self._name_of(topic_id))
            room_bytes -= told.ByteSize()
            if room_bytes < 0:
                break
            reply.topics.append(told)
        return reply

    def names(self) -> set[str]:
        """Return the groups there are."""
        return {*self._positions.names(), *self._records.names()}

    def summary(self, name: str, node_id: str) -> pb.GroupSummary:
        """Return a group in a line."""
        record = self._records.get(name) or pb.GroupRecord(group=name)
        moving = any(_differ(member) for member in record.members)
        return pb.GroupSummary(
            group=name,
            generation=record.generation,
            members=len(record.members),
            positions=self._positions.count_of(name),
            assignor=record.assignor or (pb.STICKY if record.members else pb.ASSIGNOR_UNSPECIFIED),
            state="empty" if not record.members else "moving" if moving else "stable",
            coordinator=node_id,
            last_commit_us=self._positions.last_commit_us(name),
        )

    async def delete(self, name: str) -> None:
        """Delete a group that has no members, and its positions.

        Raises:
            ProtocolError: UNKNOWN_GROUP, GROUP_NOT_EMPTY, or what the log says.
        """
        self._check_known(name)
        coordinated = self._groups.get(name) or self._coordinated(name)
        await self._offsets_log.write_group(coordinated.group.delete())
        coordinated.group.restart(self._records.get(name))
        if coordinated.group.is_empty:
            self._groups.pop(name, None)

    # -------------------------------------------------------------------------------------------- internals

    def _join(self, asked: pb.GroupHeartbeat) -> Coordinated:
        coordinated = self._groups.get(asked.group)
        if coordinated is None:
            self._check_room(asked.group)
            coordinated = self._groups[asked.group] = self._coordinated(asked.group)
        try:
            replaced = coordinated.group.join(asked.member_id, asked.join)
        except ProtocolError:
            self._drop_if_empty(asked.group)
            raise
        self._sessions.forget(Who(asked.group, other) for other in replaced)
        coordinated.removed(replaced)
        return coordinated

    def _check_room(self, name: str) -> None:
        names = self.names()
        if name not in names and len(names) >= self._bounds.groups:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"there are {len(names)} groups and groups_max allows no more, so {name!r} is not made: use a group "
                "that there is, delete some, or raise groups_max on every node",
            )
        if self._records.size_bytes + self._positions.size_bytes >= self._bounds.size_bytes:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"groups and their positions take all of positions_bytes, so nobody can join {name!r}: delete groups "
                "that nobody needs, or raise it on every node",
            )

    async def _leave(self, asked: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply:
        coordinated = self._groups.get(asked.group)
        self._sessions.forget([Who(asked.group, asked.member_id)])
        if coordinated is not None and coordinated.group.remove(asked.member_id):
            coordinated.removed([asked.member_id])
            await asyncio.shield(coordinated.settle())
        return pb.GroupHeartbeatReply(unchanged=True)

    def _take_report(self, coordinated: Coordinated, asked: pb.GroupHeartbeat) -> None:
        group = coordinated.group
        for load in asked.loads:
            group.loads[load.topic_id, load.partition] = load.bytes_per_s
        group.report(asked.member_id, seen_revision=asked.seen_revision, held=keys_of(asked.held))
        coordinated.settle()

    def _hear(self, group: str, member_id: str, wish: pb.GroupWish) -> None:
        until = self._tasks.loop.time() + session_ms(wish) / 1000
        self._sessions.heard(Who(group, member_id), until=until)
        if not self._ticking:
            self._ticking = True
            self._tasks.spawn(self._tick_on(), "looking after groups")

    @property
    def _is_coordinating(self) -> bool:
        partition = self._partition()
        return partition is not None and partition.state.writer is not None and partition.state.epoch == self._epoch

    def _begin(self, epoch: int) -> None:
        """Coordinate from now on, with what the log says."""
        self._end()
        self._epoch = epoch
        self._topics_seen = self._topics.changes
        for record in self._records.records():
            if record.members:
                self._groups[record.group] = self._coordinated(record.group)
                for member in record.members:
                    self._hear(record.group, member.member_id, member.wish)
        if self._groups:
            log.info("this node coordinates %d groups with members from now on", len(self._groups))

    def _end(self) -> None:
        """Coordinate nothing any more: who waits is sent on."""
        self._epoch = None
        groups, self._groups = self._groups, {}
        self._sessions = Sessions()
        for coordinated in groups.values():
            coordinated.fail(_elsewhere())

    def _coordinated(self, name: str) -> Coordinated:
        group = Group(name, self._subscriptions.of)
        group.restart(self._records.get(name))
        return Coordinated(
            group,
            tasks=self._tasks,
            write=self._offsets_log.write_group,
            standing=lambda: self._records.get(name),
            restarted=self._expect_all,
        )

    def _expect_all(self, group: Group) -> None:
        """Expect to hear of all members; some are members again, because it could not be written that they are not."""
        if self._groups.get(group.name) is None:
            return
        for member_id in group.member_ids:
            member = group.member(member_id)
            if member is not None and Who(group.name, member_id) not in self._sessions:
                self._hear(group.name, member_id, member.wish)

    async def _tick_on(self) -> None:
        try:
            while self._epoch is not None and len(self._sessions):
                await asyncio.sleep(TICK_S)
                self._tick()
        finally:
            self._ticking = False

    def _tick(self) -> None:
        if self._is_stopping() or not self._is_coordinating:
            self._end()
            return
        for who in self._sessions.expired(self._tasks.loop.time()):
            self._expire(who)
        if self._topics_seen != self._topics.changes:
            self._topics_seen = self._topics.changes
            for coordinated in list(self._groups.values()):
                coordinated.group.look_at_topics()
                coordinated.settle()

    def _expire(self, who: Who) -> None:
        coordinated = self._groups.get(who.group)
        if coordinated is None or not coordinated.group.remove(who.member_id):
            return
        log.info("the group %r goes on without its member %s, which was silent", who.group, who.member_id)
        coordinated.removed([who.member_id])
        coordinated.settle()

    def _drop_if_empty(self, name: str) -> None:
        coordinated = self._groups.get(name)
        if coordinated is not None and coordinated.group.is_empty:
            del self._groups[name]

    def _check_known(self, name: str) -> None:
        if name not in self._positions.names() and self._records.get(name) is None:
            raise ProtocolError(pb.UNKNOWN_GROUP, f"there is no group {name!r}: it has neither members nor positions")

    def _named(self, keys: Iterable[PartitionKey]) -> list[pb.TopicPartitions]:
        topics = partitions_of(keys)
        for topic in topics:
            topic.topic = self._name_of(topic.topic_id)
        return topics

    def _name_of(self, topic_id: bytes) -> str:
        record = self._topics.get(topic_id)
        return "" if record is None or record.deleted else record.name


def _elsewhere() -> ProtocolError:
    return ProtocolError(pb.EPOCH_CHANGING, "another node coordinates this group now, or is about to; send again")


def session_ms(wish: pb.GroupWish) -> int:
    """Return how long a member may be silent, in ms."""
    return wish.session_timeout_ms or GROUP_SESSION_MS_DEFAULT


def _differ(member: pb.GroupMember) -> bool:
    return keys_of(member.held) != keys_of(member.target)
