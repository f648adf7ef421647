"""The coordinator of the groups in one partition of `__offsets`: heartbeats, assignments and session timeouts.

The partition's owner coordinates. It starts with the state in the log whenever it becomes the owner, and every member
then gets its whole session timeout. A heartbeat is answered only after a quorum has confirmed the ownership since it
arrived, so a former owner cannot keep a member alive. The coordinator's timeout starts when the heartbeat arrives, the
member's own when it was sent. So a member has stopped reading before its partitions are assigned to another member.

A member belongs to the principal that joined it, and is assigned only partitions that this principal may read. The
principal is not stored: each heartbeat identifies it, so after a takeover a member gets new partitions only after its
first heartbeat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.consumer_group import ConsumerGroup, fenced
from tidelog_broker.core.groups.member_access import MemberAccess
from tidelog_broker.core.groups.partition_lists import keys_of
from tidelog_broker.core.groups.positions import GroupBounds, GroupOffsets
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.groups.coordinated_group import CoordinatedGroup
from tidelog_broker.groups.descriptions import Descriptions
from tidelog_broker.groups.sessions import MemberKey, Sessions
from tidelog_broker.groups.subscriptions import Subscriptions
from tidelog_broker.metadata.state_log import OffsetsLog
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.flow.fair_scheduler import SLICE_S, Turns
from tidelog_proto.limits import GROUP_SESSION_MS_DEFAULT
from tidelog_proto.names import OFFSETS_TOPIC

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
"""Interval of checks for expired sessions, changed topics and lost ownership."""
RULES_LOOK_S: Final = 0.5
"""Delay between a change of access rules and the check of assignments. All nodes should know the rules by then, so that
a member is not assigned a partition that a node still refuses to it."""
LOADS_LOOK_S: Final = 1.0
"""Interval of checks whether measured loads justify a new assignment."""
WAIT_SHARE: Final = 3
"""An answer is delayed for at most the member's session timeout divided by this number."""
HELD_BACK_MS_MAX: Final = 10_000
"""Maximum delay of the answer to a heartbeat; it must be shorter than the timeout of a node that forwards the
heartbeat."""


REMEMBERED_MAX: Final = 1_024
"""Maximum number of members that `DepartedMembers` remembers. A late join of a member that is no longer remembered
creates the member again, until its session times out."""


class DepartedMembers:
    """Remembers members that have left or were replaced, to refuse their joins that arrive late or repeated.

    A join waits while the coordinator is being found or its partition opened, so it may arrive after the member's
    leave. It would then create a member without a client, whose partitions are not read until its session times out. A
    client that returns uses a new member id.
    """

    def __init__(self) -> None:
        self._gone: dict[MemberKey, None] = {}

    def __contains__(self, who: object) -> bool:
        """Return whether a member has left or was replaced."""
        return who in self._gone

    def note(self, who: MemberKey) -> None:
        """Record a member that leaves or is replaced, also one whose join has not arrived."""
        self._gone.pop(who, None)
        self._gone[who] = None
        if len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]


class Holdings(Protocol):
    """Provides the totals that are limited, over all partitions of `__offsets` that this node knows."""

    def group_count(self) -> int:
        """Return the number of groups."""
        ...

    def size_bytes(self) -> int:
        """Return the approximate memory of groups and positions."""
        ...


class Coordinator:
    """Coordinates the groups of one partition of `__offsets`.

    Args:
        awake: opens the partition if this node stores it.
        partition: returns the partition if this node stores it and it is open.
        is_stopping: returns whether the node is stopping, so that no caller should wait.
        turns: schedules the slices in which group records are made.
    """

    def __init__(
        self,
        *,
        tasks: Tasks,
        offsets_log: OffsetsLog,
        awake: Callable[[], Awaitable[None]],
        partition: Callable[[], Partition | None],
        groups: GroupRecords,
        positions: GroupOffsets,
        topics: TopicRegistry,
        permissions: Permissions,
        subscriptions: Subscriptions,
        holdings: Holdings,
        bounds: GroupBounds,
        descriptions: Descriptions,
        clock: SteadyClock,
        metrics: NodeMetrics,
        is_stopping: Callable[[], bool],
        turns: Turns,
    ) -> None:
        self.descriptions = descriptions
        self._clock = clock
        self._metrics = metrics
        self._tasks = tasks
        self._offsets_log = offsets_log
        self._awake = awake
        self._partition = partition
        self._records = groups
        self._positions = positions
        self._topics = topics
        self._permissions = permissions
        self._bounds = bounds
        self._is_stopping = is_stopping
        self._turns = turns
        self._subscriptions = subscriptions
        self._holdings = holdings
        self._counted = (0, 0)
        self._groups: dict[str, CoordinatedGroup] = {}
        self._sessions = Sessions()
        self._expiring: list[MemberKey] = []
        """Members whose sessions have timed out while the target of their group is computed."""
        self._departed_members = DepartedMembers()
        self._epoch: int | None = None
        """The epoch that this state belongs to; None while this node coordinates nothing."""
        self._prepared_in: int | None = None
        """The epoch in which the pending positions were prepared; None before the first ones."""
        self._topics_seen = 0
        self._rules_seen = 0
        self._rules_look_at: float | None = None
        self._loads_look_at = 0.0
        self._ticking = False
        self._deleting: set[str] = set()
        """Groups that are being deleted; a record written now would be deleted, too."""

    async def ready(self, *, confirmed: bool = False) -> int:
        """Ensure that this node coordinates, starting with the state of the log if it has just become the owner.

        Returns:
            The epoch in which that holds, see `StateLog.ready`.

        Raises:
            ProtocolError: see `StateLog.ready`.
        """
        await self._awake()
        epoch = await self._offsets_log.ready(confirmed=confirmed)
        if epoch != self._epoch:
            self.begin(epoch)
        return epoch

    @property
    def owns_log(self) -> bool:
        """Whether this node owns the partition, as far as it knows."""
        partition = self._partition()
        return partition is not None and partition.state.assigner is not None

    # ---------------------------------------------------------------------------------------------- members

    async def heartbeat(
        self, request: pb.GroupHeartbeat, reader: MemberAccess, *, creator: str = "", counted_in: int | None = None
    ) -> pb.GroupHeartbeatReply:
        """Add, keep or remove a member, as its heartbeat requests, and return its assignment.

        The answer is delayed until the assignment is newer than the one that the member has seen, for at most
        `wait_ms` (limited by `WAIT_SHARE` and `HELD_BACK_MS_MAX`). If a member leaves, the answer waits only for the
        write of its removal.

        Args:
            creator: the principal that creates the group if it does not exist; empty if unknown.
            counted_in: the epoch in which the creator's groups were counted against its quota; None without a quota.

        Raises:
            ProtocolError: MEMBER_FENCED, also for a member of another principal; INVALID_REQUEST if a limit of groups,
                members or topics is reached; see `ready` and `StateLog.write`.
        """
        epoch = await self.ready()
        if request.HasField("join") or request.leave or request.stopped:
            await self._decided(request.group)
        if self._epoch != epoch or counted_in not in {None, epoch}:
            raise _elsewhere()
        self.check_caller(request.group, request.member_id, reader)
        if request.leave or request.stopped:
            return await self._leave(request)
        who = MemberKey(request.group, request.member_id)
        known = self._sessions.reader(who)
        coordinated = (
            self._join(request, creator, reader) if request.HasField("join") else self._groups.get(request.group)
        )
        member = None if coordinated is None else coordinated.group.member(request.member_id)
        if coordinated is None or member is None:
            raise fenced(request.group)
        self._hear(request.group, request.member_id, member.wish)
        self._sessions.reads_for(who, reader)
        if known is None or known.key != reader.key:
            coordinated.group.check_topics()
            await asyncio.shield(coordinated.settle())
        if request.HasField("join"):
            await asyncio.shield(coordinated.settle())
        else:
            self._take_report(coordinated, request)
        wait_s = min(request.wait_ms, session_ms(member.wish) // WAIT_SHARE, HELD_BACK_MS_MAX) / 1000
        await coordinated.news(request.member_id, seen_revision=request.seen_revision, wait_s=wait_s)
        await self.ready(confirmed=True)
        if self._groups.get(request.group) is not coordinated:
            raise _elsewhere()
        if coordinated.group.in_doubt:
            await asyncio.shield(coordinated.settle())
        assignment = coordinated.group.assignment_of(request.member_id)
        if assignment is None:
            raise fenced(request.group)
        if assignment.revision <= request.seen_revision:
            reply = pb.GroupHeartbeatReply(
                revision=request.seen_revision, generation=assignment.generation, unchanged=True
            )
        else:
            assigned = self.descriptions.named(assignment.assigned)
            reply = pb.GroupHeartbeatReply(
                revision=assignment.revision, generation=assignment.generation, assigned=assigned
            )
        reply.wants_loads = coordinated.group.wants_loads
        return reply

    def check_caller(self, group: str, member_id: str, reader: MemberAccess) -> None:
        """Check that a member belongs to the caller's principal, or that its principal is not known yet.

        Raises:
            ProtocolError: MEMBER_FENCED: the member belongs to another principal.
        """
        known = self._sessions.reader(MemberKey(group, member_id))
        if known is not None and known.principal != reader.principal:
            raise fenced(group)

    def may_commit(self, group: str, member_id: str, generation: int) -> Callable[[PartitionKey], bool]:
        """Return the check whether a member may commit a position of a partition.

        The check is valid until the caller's next await, so the positions must be prepared before it.

        Raises:
            ProtocolError: no position may be committed: see `ConsumerGroup.may_commit`; EPOCH_CHANGING if this node no
                longer coordinates, or while the group is being deleted; INVALID_REQUEST if the limit of groups is
                reached.
        """
        self._coordinating()
        self._check_stays(group)
        if group not in self._positions.names() and self._records.get(group) is None:
            self._check_room(group)
        coordinated = self._groups.get(group)
        if coordinated is not None:
            return coordinated.group.may_commit(member_id, generation)
        if member_id:
            raise fenced(group)
        return _anywhere

    # ----------------------------------------------------------------------------------------------- groups

    def is_new(self, name: str) -> bool:
        """Return whether joining or committing creates the group: nothing of it is durable, and it has no members."""
        is_kept = self._records.get(name) is not None or self._positions.count_of(name) > 0
        return not is_kept and name not in self._groups

    def has_members(self, name: str) -> bool:
        """Return whether a group has members, decided or durable."""
        coordinated, record = self._groups.get(name), self._records.get(name)
        return (coordinated is not None and not coordinated.group.is_empty) or bool(record and record.members)

    async def delete(self, name: str) -> None:
        """Delete a group without members, and its positions.

        Raises:
            ProtocolError: UNKNOWN_GROUP, GROUP_NOT_EMPTY, EPOCH_CHANGING while it is being deleted; see
                `StateLog.write`.
        """
        self.descriptions.check_known(name)
        self._check_stays(name)
        epoch = self._coordinating()
        record = (self._groups.get(name) or self._coordinated_group(name)).group.delete()
        self._deleting.add(name)
        try:
            await self._write(record, epoch)
        finally:
            self._deleting.discard(name)
            self._groups.pop(name, None)  # no member can have joined meanwhile

    # -------------------------------------------------------------------------------------------- internals

    async def _decided(self, name: str) -> None:
        """Wait while the target of a group is computed, because its members must not change."""
        while (coordinated := self._groups.get(name)) is not None and coordinated.group.is_deciding:
            await coordinated.decided()

    def _join(self, request: pb.GroupHeartbeat, creator: str, reader: MemberAccess) -> CoordinatedGroup:
        self._check_stays(request.group)
        who = MemberKey(request.group, request.member_id)
        if who in self._departed_members:
            raise fenced(request.group)
        is_new = self.is_new(request.group)
        coordinated = self._groups.get(request.group)
        if coordinated is None or coordinated.group.member(request.member_id) is None:
            self._check_room(request.group)
        if coordinated is None:
            coordinated = self._groups[request.group] = self._coordinated_group(request.group)
        if is_new:
            coordinated.group.creator = creator
        self._sessions.reads_for(who, reader)
        try:
            self._subscriptions.try_out(request.join)
            replaced = coordinated.group.join(request.member_id, request.join, ended=self._ended_id(request, reader))
        except ProtocolError:
            if coordinated.group.member(request.member_id) is None:
                self._sessions.forget([who])
            self._drop_if_empty(coordinated.group)
            raise
        for other in replaced:
            self._sessions.forget([MemberKey(request.group, other)])
            self._departed_members.note(MemberKey(request.group, other))
        self._metrics.members_fenced.inc(len(replaced))
        coordinated.removed(replaced)
        return coordinated

    def _ended_id(self, request: pb.GroupHeartbeat, reader: MemberAccess) -> str:
        """Return the earlier member id that a join ends; "" if that member belongs to another principal.

        If this coordinator does not know the earlier member's principal yet, the join is accepted: knowledge of the
        member id is sufficient, as in any other request of such a member.
        """
        known = self._sessions.reader(MemberKey(request.group, request.ended_member_id))
        return request.ended_member_id if known is None or known.principal == reader.principal else ""

    def _check_stays(self, name: str) -> None:
        if name in self._deleting:
            raise ProtocolError(pb.EPOCH_CHANGING, f"group {name!r} is being deleted; retry")

    def _check_room(self, name: str) -> None:
        if name not in self._groups and name not in self._positions.names() and self._records.get(name) is None:
            count = self._holdings.group_count() + len(self._groups.keys() - self.descriptions.names())
            if count >= self._bounds.groups:
                raise ProtocolError(
                    pb.INVALID_REQUEST,
                    f"cannot create group {name!r}: the limit of groups (groups_max) is reached with {count} groups; "
                    "use an existing group, delete some, or raise groups_max on every node",
                )
        if self._holdings.size_bytes() >= self._bounds.size_bytes:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"cannot create group {name!r} or add a member to it: groups and positions use the maximum of "
                f"positions_bytes ({self._bounds.size_bytes} bytes); delete unused groups, or raise positions_bytes on "
                "every node",
            )

    async def _leave(self, request: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply:
        """Remove a member or, if its target is reserved for its successor, keep it for its session timeout."""
        coordinated, who = self._groups.get(request.group), MemberKey(request.group, request.member_id)
        group = None if coordinated is None else coordinated.group
        is_known = group is not None and (group.stop if request.stopped else group.remove)(request.member_id)
        member = None if group is None else group.member(request.member_id)
        if member is None:
            self._sessions.forget([who])
            self._departed_members.note(who)
        else:
            self._hear(request.group, request.member_id, member.wish)
        if coordinated is not None and is_known:
            coordinated.removed([request.member_id])
            await asyncio.shield(coordinated.settle())
        return pb.GroupHeartbeatReply(unchanged=True)

    def _take_report(self, coordinated: CoordinatedGroup, request: pb.GroupHeartbeat) -> None:
        group = coordinated.group
        group.note_loads(
            request.member_id, {(load.topic_id, load.partition): load.bytes_per_s for load in request.loads}
        )
        group.report(request.member_id, seen_revision=request.seen_revision, held=keys_of(request.held))
        coordinated.settle()

    def _hear(self, group: str, member_id: str, wish: pb.GroupWish) -> None:
        until = self._tasks.loop.time() + session_ms(wish) / 1000
        self._sessions.heard(MemberKey(group, member_id), until=until)
        if not self._ticking:
            self._ticking = True
            self._sessions.begin(self._tasks.loop.time())
            self._tasks.spawn(self._tick_on(), "the periodic check of groups")

    @property
    def _is_coordinating(self) -> bool:
        partition = self._partition()
        return partition is not None and partition.state.assigner is not None and partition.state.epoch == self._epoch

    def begin(self, epoch: int) -> None:
        """Start coordinating with the state of the log."""
        self._end()
        self._epoch = epoch
        if epoch != self._prepared_in:  # Records of an earlier epoch are by now committed and applied, or refused.
            self._prepared_in = epoch
            self._positions.forget_pending()
        self._topics_seen = self._topics.changes
        self._rules_seen = self._permissions.changes
        self._rules_look_at = None
        for record in self._records.records():
            if record.members:
                self._groups[record.group] = self._coordinated_group(record.group)
                for member in record.members:
                    self._hear(record.group, member.member_id, member.wish)
        if self._groups:
            partition = self._partition()
            log.info(
                "this node now coordinates %s, which has %d groups with members",
                OFFSETS_TOPIC if partition is None else f"partition {partition.state.index} of {OFFSETS_TOPIC}",
                len(self._groups),
            )

    def _end(self) -> None:
        """Stop coordinating; waiting requests fail with EPOCH_CHANGING, so that clients find the new coordinator."""
        self._epoch = None
        groups, self._groups = self._groups, {}
        self._sessions, self._expiring = Sessions(), []
        self._departed_members = DepartedMembers()
        self._count()
        for coordinated in groups.values():
            coordinated.fail(_elsewhere())

    def _coordinating(self) -> int:
        """Return the epoch in which this node coordinates.

        Raises:
            ProtocolError: EPOCH_CHANGING: it does not coordinate.
        """
        if self._epoch is None or not self._is_coordinating:
            raise _elsewhere()
        return self._epoch

    def _coordinated_group(self, name: str) -> CoordinatedGroup:
        """Return a group with the state of the log; its records are appended in the current epoch or not at all."""
        epoch = self._epoch
        assert epoch is not None, "`ready` has returned"
        group = ConsumerGroup(
            name, self._subscriptions.of, lambda member_id: self._sessions.reader(MemberKey(name, member_id))
        )
        group.restart(self._records.get(name))
        return CoordinatedGroup(
            group,
            tasks=self._tasks,
            write=lambda record: self._write(record, epoch),
            durable_record=lambda: self._records.get(name),
            restarted=self._restart_sessions,
            settled=self._drop_if_empty,
            pace=lambda: self._turns.next_slice(self, (self, name), SLICE_S),
        )

    async def _write(self, record: pb.GroupRecord, epoch: int) -> None:
        """Make a record durable, if this node still coordinates in the epoch in which it was decided."""
        if self._coordinating() != epoch:
            raise _elsewhere()
        record.changed_us = self._clock.now_us()
        current = self._records.get(record.group)
        before = 0 if current is None else current.generation
        await self._offsets_log.write_group(record, epoch=epoch)
        self._metrics.group_generations.inc(max(record.generation - before, 0))

    def _restart_sessions(self, group: ConsumerGroup, error: ProtocolError) -> None:
        """Start a session for each member of a group that has no session, because its removal could not be written.

        The group is back at its durable record. It is dropped if it is empty and the write has definitely failed.
        """
        coordinated = self._groups.get(group.name)
        if coordinated is None or coordinated.group is not group:
            return
        if NATURE[error.code].definite:  # otherwise the revisions must not be reused
            self._drop_if_empty(group)
        for member_id in group.member_ids:
            member = group.member(member_id)
            if member is not None and MemberKey(group.name, member_id) not in self._sessions:
                self._hear(group.name, member_id, member.wish)

    async def _tick_on(self) -> None:
        try:
            while self._epoch is not None and (len(self._sessions) or self._expiring):
                await asyncio.sleep(TICK_S)
                self._tick()
        finally:
            self._ticking = False

    def _tick(self) -> None:
        if self._is_stopping() or not self._is_coordinating:
            self._end()
            return
        now = self._tasks.loop.time()
        due, self._expiring = [*self._expiring, *self._sessions.expired(now)], []
        for who in due:
            self._expire(who)
        self._count()
        if self._topics_seen != self._topics.changes or self._rules_are_to_be_looked_at(now):
            self._topics_seen = self._topics.changes
            for coordinated in list(self._groups.values()):
                coordinated.group.check_topics()
                coordinated.settle()
        if now >= self._loads_look_at:
            self._loads_look_at = now + LOADS_LOOK_S
            for name, coordinated in list(self._groups.items()):
                if coordinated.group.check_loads(now):
                    log.info("moving partitions of group %r: some members read much more than others", name)
                    coordinated.settle()

    def _rules_are_to_be_looked_at(self, now: float) -> bool:
        """Return whether assignments have to be checked against changed rules now."""
        if self._rules_look_at is None:
            if self._rules_seen != self._permissions.changes:
                self._rules_look_at = now + RULES_LOOK_S
            return False
        if now < self._rules_look_at:
            return False
        self._rules_look_at, self._rules_seen = None, self._permissions.changes
        return True

    def _count(self) -> None:
        groups, members = self._counted
        self._counted = len(self._groups), len(self._sessions)
        self._metrics.groups.inc(
            self._counted[0] - groups
        )  # Adjust by the difference, because all partitions of `__offsets` share the gauges.
        self._metrics.members.inc(self._counted[1] - members)

    def _expire(self, who: MemberKey) -> None:
        coordinated = self._groups.get(who.group)
        if coordinated is None or who in self._sessions:
            return
        if coordinated.group.is_deciding:
            self._expiring.append(who)
            return
        if not coordinated.group.remove(who.member_id):
            return
        log.info(
            "group %r removed its member %s, which sent no heartbeat within its session timeout",
            who.group,
            who.member_id,
        )
        self._metrics.members_fenced.inc()
        coordinated.removed([who.member_id])
        coordinated.settle()

    def _drop_if_empty(self, group: ConsumerGroup) -> None:
        coordinated = self._groups.get(group.name)
        if coordinated is not None and coordinated.group is group and group.is_empty:
            del self._groups[group.name]


def _anywhere(_: PartitionKey) -> bool:
    return True


def _elsewhere() -> ProtocolError:
    return ProtocolError(pb.EPOCH_CHANGING, "the group's coordinator is changing; retry")


def session_ms(wish: pb.GroupWish) -> int:
    """Return a member's session timeout in ms."""
    return wish.session_timeout_ms or GROUP_SESSION_MS_DEFAULT
