"""Group membership of a consumer: heartbeats, assignment changes, and rejoining after being fenced.

Heartbeats are long polls at the coordinator, which answers when the assignment changes. If a heartbeat has no answer
when the session expires, the membership ends, whatever the node does later: other members may read the partitions then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from tidelog.base.backoff import Backoff
from tidelog.base.tasks import cancel_all
from tidelog.cluster.coordinators import coordinator_partition
from tidelog.cluster.routing import Router
from tidelog.errors import MemberFencedError, TidelogError, UnknownTopicError, describe_error
from tidelog.groups.commits import GroupCommits, store_or_log, store_periodically
from tidelog.groups.membership import Membership, PartitionId
from tidelog.groups.options import ASSIGNORS, Group
from tidelog.groups.partition_handover import PartitionHandover
from tidelog.groups.session_clock import session_time
from tidelog.model import TopicPartition
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import ConsumerOptions
from tidelog.subscriptions.load_meter import LoadMeter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import OFFSETS_TOPIC

WAIT_SHARE: Final = 4
"""A heartbeat waits at the coordinator for at most this fraction (1 / number) of the session or poll time-out,
whichever is shorter.

So when the coordinator fails, at least half of the session is left for its successor.
"""
YIELD_INTERVAL_S: Final = 0.05
"""Interval at which an application that never waits yields to the member's heartbeats."""
YIELD_STEPS: Final = 4
"""Number of event loop iterations that process an answer and send the next heartbeat."""
LEAVE_TIMEOUT_S: Final = 2.0
"""Time limit on close for commits in flight, and again for the message to the coordinator."""
IDLE_CHECK_S: Final = 0.5
"""Interval at which a member that left because the application was idle checks whether it asks for records again."""

_log: Final = logging.getLogger("tidelog.consumer")


class GroupMember:
    """Keeps one consumer a member of its group until `close`.

    Args:
        make_handover: creates the handover for this member's commits.
        is_waiting: whether the application is waiting for records.

    Attributes:
        turn_at: `session_time` from which `turn` must be awaited before more is delivered.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        group_options: Group,
        assignment: Assignment,
        make_handover: Callable[..., PartitionHandover],
        *,
        client_id: str,
        is_waiting: Callable[[], bool],
    ) -> None:
        assert options.group is not None
        self._router = router
        self._group = options.group
        self._options = options
        self._group_options = group_options
        self._assignment = assignment
        self._client_id = client_id
        self._is_waiting = is_waiting
        self.turn_at = 0.0
        self._born_us = time.time_ns() // 1000
        """Time of creation, which does not change when the member rejoins: the coordinator fences the older one of two
        processes with the same instance id; otherwise they would fence each other forever."""
        self._read = ", ".join(options.topics) if options.pattern is None else f"topics like {options.pattern.text!r}"
        self._membership: Membership | None = None
        self._is_known = False
        """Whether a heartbeat was sent, so that a coordinator may know the member."""
        self._closed = False
        self._coordinator_partition: TopicPartition | None = None
        """The partition whose owner is the group's coordinator; None until the number of partitions is known."""
        self._changed = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self.commits = GroupCommits(router, lambda: assignment.topic_ids, lambda: self._membership, options.group)
        self.handover = make_handover(commits=self.commits, changed=self._changed.set)
        assignment.survives_deletion = lambda _: True
        assignment.loads = self._loads = LoadMeter(time.monotonic)
        assignment.suspend_while(self._is_over)

    @property
    def generation(self) -> int:
        """The group's generation as this member knows it; 0 before it has joined."""
        return 0 if self._membership is None else self._membership.generation

    @property
    def member_id(self) -> str:
        """The current member id; "" before the first join request."""
        return "" if self._membership is None else self._membership.member_id

    @property
    def reads_until(self) -> float:
        """The `session_time` until which no other member may read this member's partitions; 0 before it has joined."""
        return 0.0 if self._membership is None else self._membership.ends_at

    def begin(self) -> None:
        """Join, and stay a member until `close`."""
        self._run(self._run_memberships(), f"member of {self._group}")
        if self._group_options.commit == "auto":
            work = store_periodically(
                self.commits, self._assignment.cursor.processed, self._group_options.commit_interval_s, self._group
            )
            self._run(work, f"commits of {self._group}")

    async def commit_processed(self) -> None:
        """Commit the processed positions; only log those of partitions that moved away or whose topic was deleted.

        Raises:
            TidelogError: the positions could not be committed.
        """
        cursor = self._assignment.cursor
        moved = self.commits.moved(cursor.processed())
        if not moved:
            return
        try:
            stored = await self.commits.store(moved)
        except MemberFencedError as error:
            _log.warning(
                "%s: %d positions were not committed, and their records are read again: %s", self, len(moved), error
            )
            return
        cursor.committed({where: moved[where] for where in stored.held})
        for where, failure in stored.failed.items():
            if not isinstance(failure, MemberFencedError | UnknownTopicError):
                raise failure
            _log.warning("%s: the position of %s/%d was not committed: %s", self, *where, failure)

    async def turn(self) -> None:
        """Yield to the event loop for heartbeats, because an application that never waits blocks it.

        If the session has expired, all received records are dropped before this returns.
        """
        for _ in range(YIELD_STEPS):
            await asyncio.sleep(0)
        left_s = YIELD_INTERVAL_S
        while (membership := self._membership) is not None and self._running and not self._running[0].done():
            if not membership.is_over(session_time()):
                left_s = (
                    min(YIELD_INTERVAL_S, membership.ends_at - session_time())
                    if membership.is_joined
                    else YIELD_INTERVAL_S
                )
                break
            await asyncio.sleep(IDLE_CHECK_S / 50)
        self.turn_at = session_time() + left_s

    async def close(self, *, commits_in_hand: bool) -> None:
        """Release all partitions and leave; a static member's partitions stay reserved until its session expires."""
        # `close` may run in a callback of the task of `_run_memberships`, which `cancel_all` does not cancel then; this
        # flag ends its loop.
        self._closed = True
        await cancel_all(self._running)
        membership, self._running = self._membership, []
        try:
            if membership is not None and membership.is_joined:
                await self.handover.end(membership, commits_in_hand=commits_in_hand)
        finally:
            await self.commits.close(LEAVE_TIMEOUT_S)
        if membership is None:
            return
        self._membership = None
        if not self._is_known:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                last = membership.leaving() if self._group_options.instance_id is None else membership.stopping()
                await self._ask(last, wait_ms=0)
        except (TidelogError, TimeoutError) as error:
            _log.info(
                "%s: could not reach the coordinator; the member leaves when its session times out: %s",
                self,
                str(error) or f"no answer within {LEAVE_TIMEOUT_S:g} s",
            )

    def __str__(self) -> str:
        return f"{self._read}: group {self._group!r}"

    # --------------------------------------------------------------------------------------------- internals

    def _is_over(self) -> bool:
        """Return whether the session has expired, for example because the process or its event loop was blocked."""
        return self._membership is not None and self._membership.is_over(session_time())

    async def _run_memberships(self) -> None:
        refused, ended_id = Backoff(), ""
        try:
            await self.handover.initial_positions.note_existing_partitions()
        except TidelogError as error:
            self._assignment.broken(error)
            return
        while not self._closed:
            membership = self._membership = self._new_membership(ended_id)
            try:
                await self._heartbeat_loop(membership)
            except MemberFencedError as error:
                if not membership.is_joined:
                    wait_s = refused.next_wait_s(1000)
                    _log.warning(
                        "%s: the coordinator refused the join; retrying in %.1f s: %s",
                        self,
                        wait_s,
                        describe_error(error),
                    )
                    await asyncio.sleep(wait_s)
                else:
                    _log.warning(
                        "%s: the coordinator fenced this member; joining again: %s", self, describe_error(error)
                    )
            except TidelogError as error:
                await self.handover.lose(membership)
                self._assignment.broken(error)
                return
            await self.handover.lose(membership)
            ended_id = membership.member_id if membership.is_joined else ended_id

    async def _heartbeat_loop(self, membership: Membership) -> None:
        """Send heartbeats and apply the answers until the membership ends.

        Raises:
            MemberFencedError: the coordinator has fenced or refused the member.
            TidelogError: the error is not retriable.
        """
        wait_ms = (
            int(min(self._group_options.session_timeout_s, self._group_options.poll_timeout_s) * 1000) // WAIT_SHARE
        )
        backoff, idle = Backoff(), _Idle(self._group_options.poll_timeout_s, time.monotonic())
        is_late = False
        while not membership.is_over(sent_at := session_time()):
            self._changed.clear()
            try:
                # After a failure part of the session has passed, so the next answer must not be held back.
                heartbeat = membership.heartbeat(wait_ms=0 if is_late else wait_ms, loads=self._loads_of(membership))
                reply = await self._ask_unless_changed(membership, heartbeat)
            except TidelogError as error:
                is_late = True
                if not error.retriable:
                    raise
                if self._coordinator_partition is not None:
                    self._router.learn_from(OFFSETS_TOPIC, error, self._coordinator_partition.partition)
                with contextlib.suppress(TimeoutError):  # do not wait beyond the session's end
                    async with asyncio.timeout(membership.ends_at - session_time() if membership.is_joined else None):
                        await self._router.news(OFFSETS_TOPIC, backoff.next_wait_s(error.retry_after_ms))
                continue
            backoff.reset()
            if reply is not None:
                is_late = False
                change = membership.answered(reply, sent_at=sent_at, now=session_time())
                self.handover.revoke(membership, change.revoked)
                self.handover.assign(membership, change.assigned)
            if idle.is_too_long(time.monotonic(), self._assignment.cursor.progress, waits=self._is_waiting()):
                await self._leave_while_idle(membership)
                return
        _log.warning(
            "%s: no answer from the coordinator for %g s: the session has expired and other members may own the "
            "partitions; joining again to continue at the committed positions",
            self,
            self._group_options.session_timeout_s,
        )

    def _loads_of(self, membership: Membership) -> dict[PartitionId, float]:
        """Return the loads to report to the coordinator now; empty if it does not want them or none is due."""
        if not membership.wants_loads:
            return {}
        ids = self._assignment.topic_ids
        return {(ids[topic], number): rate for (topic, number), rate in self._loads.due().items() if topic in ids}

    async def _ask_unless_changed(
        self, membership: Membership, heartbeat: pb.GroupHeartbeat
    ) -> pb.GroupHeartbeatReply | None:
        """Send a heartbeat; None if the state to report changed before the answer, or the session ended.

        Raises:
            TidelogError: the heartbeat failed.
        """
        loop = asyncio.get_running_loop()
        asking = loop.create_task(self._ask(heartbeat, wait_ms=heartbeat.wait_ms))
        hearing = loop.create_task(self._changed.wait())
        try:
            patience_s = membership.ends_at - session_time() if membership.is_joined else None
            await asyncio.wait({asking, hearing}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, hearing):
                task.cancel()
            await asyncio.gather(asking, hearing, return_exceptions=True)

    async def _ask(self, heartbeat: pb.GroupHeartbeat, *, wait_ms: int) -> pb.GroupHeartbeatReply:
        if self._coordinator_partition is None:
            # Looked up once, because the number of partitions of this topic never changes.
            count = (await self._router.topic(OFFSETS_TOPIC)).partition_count
            self._coordinator_partition = coordinator_partition(self._group, count)
        connection = await self._router.connection(*self._coordinator_partition)
        envelope = pb.Envelope(group_heartbeat=heartbeat)
        self._is_known = True
        frame = await self._router.call_owner(self._coordinator_partition, connection, envelope, wait_s=wait_ms / 1000)
        return frame.envelope.group_heartbeat_reply

    async def _leave_while_idle(self, membership: Membership) -> None:
        """Leave the group after the poll time-out; return when the application asks for records again."""
        _log.warning(
            "%s: the application did not ask for records for %g s; leaving the group until it does. If processing "
            "takes that long, raise poll_timeout_s",
            self,
            self._group_options.poll_timeout_s,
        )
        if self._group_options.commit != "manual":
            await store_or_log(self.commits, self._assignment.cursor.processed(), self._group)
        await self.handover.lose(membership)
        if self._closed:
            return
        try:
            await self._ask(membership.leaving(), wait_ms=0)
        except TidelogError as error:
            _log.info(
                "%s: could not report leaving to the coordinator; the member leaves when its session times out: %s",
                self,
                describe_error(error),
            )
        before = self._assignment.cursor.progress
        while self._assignment.cursor.progress == before and not self._is_waiting():  # noqa: ASYNC110 - the cursor has no event
            await asyncio.sleep(IDLE_CHECK_S)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        def ran(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._assignment.broken(error)

        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(ran)
        self._running.append(task)

    def _new_membership(self, ended_id: str) -> Membership:
        group_options, options = self._group_options, self._options
        wish = pb.GroupWish(
            topics=options.topics,
            pattern="" if options.pattern is None else options.pattern.text,
            assignor=ASSIGNORS[group_options.assignor],
            instance_id=group_options.instance_id or "",
            session_timeout_ms=int(group_options.session_timeout_s * 1000),
            client_id=self._client_id,
            host=socket.gethostname(),
            born_us=self._born_us,
            takes_over_at_once=group_options.takeover == "at_once",
        )
        return Membership(self._group, secrets.token_hex(16), wish, group_options.session_timeout_s, ended_id)


class _Idle:
    """Measures how long the application has had records and not asked for more."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._progress: object = None
        self._since = now

    def is_too_long(self, now: float, progress: object, *, waits: bool) -> bool:
        if waits or progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since >= self._timeout_s
