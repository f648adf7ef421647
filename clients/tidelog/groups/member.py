"""A consumer as a member of its group: it says that it lives, hears what it is to read, and begins anew when fenced.

Questions go to the node that coordinates, which holds its answer back until there is news. A question that has no
answer by the time the session is over ends the membership, whatever the node does later: others may read by then.
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
from tidelog.base.tasks import ended
from tidelog.cluster.routing import Router
from tidelog.errors import MemberFencedError, TidelogError, UnknownTopicError, told
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
from tidelog_proto.batch.partitioner import partition_for_key
from tidelog_proto.names import OFFSETS_TOPIC

WAIT_SHARE: Final = 4
"""A question waits for this part of the session, or of the poll timeout, at most. So when the coordinator dies at least
half of the session is left, and its successor has that time."""
YIELD_INTERVAL_S: Final = 0.05
"""A user who never waits gives the member a turn so often."""
YIELD_STEPS: Final = 4
"""Steps of the event loop that take an answer in and the next question out."""
LEAVE_TIMEOUT_S: Final = 2.0
IDLE_CHECK_S: Final = 0.5

_log: Final = logging.getLogger("tidelog.consumer")


class GroupMember:
    """See the module.

    Args:
        router: the client's.
        options, group_options: what the consumer was asked for.
        assignment: what it reads.
        make_handover: makes what takes partitions up and gives them up, for the commits of this member.
        client_id: what the client calls itself.
        is_waiting: whether the user waits for records.

    Attributes:
        turn_at: by `session_time`, from when on `turn` is to be awaited before anything more is handed out.
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
        """The same for all lives, or two processes with one instance id would take it from each other for ever."""
        self._read = ", ".join(options.topics) if options.pattern is None else f"topics like {options.pattern.text!r}"
        self._membership: Membership | None = None
        self._is_known = False
        """Whether a coordinator may have heard of the member."""
        self._closed = False
        self._coordinator_partition: TopicPartition | None = None
        """The partition whose owner coordinates the group, once it is known how many there are."""
        self._changed = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self.commits = GroupCommits(router, lambda: assignment.topic_ids, lambda: self._membership)
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
        """What this member is called in its group by now; empty before it asks to join."""
        return "" if self._membership is None else self._membership.member_id

    @property
    def reads_until(self) -> float:
        """By `session_time`, until when nobody else may have what this member reads, as is known so far."""
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
        """Commit what the user is done with; what is another's by now is read again by that one, and reading goes on.

        Raises:
            TidelogError: it could not be committed.
        """
        cursor = self._assignment.cursor
        moved = self.commits.moved(cursor.processed())
        if not moved:
            return
        try:
            stored = await self.commits.store(moved)
        except MemberFencedError as error:
            _log.warning(
                "%s: %d positions are not committed, and what they cover is read again: %s", self, len(moved), error
            )
            return
        cursor.committed({where: moved[where] for where in stored.held})
        for where, failure in stored.failed.items():
            if not isinstance(failure, MemberFencedError | UnknownTopicError):
                raise failure
            _log.warning("%s: the position of %s/%d is not committed: %s", self, *where, failure)

    async def turn(self) -> None:
        """Let the member hear and be heard, as a user who never waits lets nobody else run.

        Where its session is over by now, that comes first: what was read is dropped, and nothing of it handed out.
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

    async def close(self, *, commits_hand: bool) -> None:
        """Give everything up and leave; a static member's partitions wait for it."""
        self._closed = True  # a callback that closes is called by a task that is not ended here
        await ended(self._running)
        membership, self._running = self._membership, []
        if membership is None:
            return
        if membership.is_joined:
            await self.handover.end(membership, commits_hand=commits_hand)
        self._membership = None
        if not self._is_known:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                last = membership.leaving() if self._group_options.instance_id is None else membership.stopping()
                await self._ask(last, wait_ms=0)
        except (TidelogError, TimeoutError) as error:
            _log.info("%s: could not tell the coordinator; the member leaves when its session is over: %s", self, error)

    def __str__(self) -> str:
        return f"{self._read}: group {self._group!r}"

    # --------------------------------------------------------------------------------------------- internals

    def _is_over(self) -> bool:
        """Whether others may have the partitions, as this process was stopped or its event loop held up for long."""
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
                        "%s: this process may not join, and tries again in %.1f s: %s", self, wait_s, told(error)
                    )
                    await asyncio.sleep(wait_s)
                else:
                    _log.warning("%s: this process was a member and joins anew: %s", self, told(error))
            except TidelogError as error:
                await self.handover.lose(membership)
                self._assignment.broken(error)
                return
            await self.handover.lose(membership)
            ended_id = membership.member_id if membership.is_joined else ended_id

    async def _heartbeat_loop(self, membership: Membership) -> None:
        """Live as a member until that is over.

        Raises:
            MemberFencedError: the coordinator says so.
            TidelogError: no trying again helps.
        """
        wait_ms = (
            int(min(self._group_options.session_timeout_s, self._group_options.poll_timeout_s) * 1000) // WAIT_SHARE
        )
        backoff, idle = Backoff(), _Idle(self._group_options.poll_timeout_s, time.monotonic())
        is_late = False
        while not membership.is_over(sent_at := session_time()):
            self._changed.clear()
            try:
                # After a failure the session has run on, so the next answer is to come at once.
                heartbeat = membership.heartbeat(wait_ms=0 if is_late else wait_ms, loads=self._loads_of(membership))
                reply = await self._ask_unless_changed(membership, heartbeat)
            except TidelogError as error:
                is_late = True
                if not error.retriable:
                    raise
                if self._coordinator_partition is not None:
                    self._router.learn_from(OFFSETS_TOPIC, error, self._coordinator_partition.partition)
                with contextlib.suppress(TimeoutError):  # whatever it waits for, the end of the session is not to pass
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
            "%s: the coordinator was not heard for %g s; others may read what this member read, and it joins anew, "
            "to go on where the group has committed",
            self,
            self._group_options.session_timeout_s,
        )

    def _loads_of(self, membership: Membership) -> dict[PartitionId, float]:
        """Return how much is read of the partitions that the coordinator is to be told of now."""
        if not membership.wants_loads:
            return {}
        ids = self._assignment.topic_ids
        return {(ids[topic], number): rate for (topic, number), rate in self._loads.due().items() if topic in ids}

    async def _ask_unless_changed(
        self, membership: Membership, heartbeat: pb.GroupHeartbeat
    ) -> pb.GroupHeartbeatReply | None:
        """Ask; None if there was something new to say before the answer, or the session ends.

        Raises:
            TidelogError: there is no answer.
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
            count = (await self._router.topic(OFFSETS_TOPIC)).partition_count  # it never changes
            self._coordinator_partition = TopicPartition(OFFSETS_TOPIC, partition_for_key(self._group.encode(), count))
        connection = await self._router.connection(*self._coordinator_partition)
        envelope = pb.Envelope(group_heartbeat=heartbeat)
        self._is_known = True
        frame = await self._router.call_owner(self._coordinator_partition, connection, envelope, wait_s=wait_ms / 1000)
        return frame.envelope.group_heartbeat_reply

    async def _leave_while_idle(self, membership: Membership) -> None:
        """Leave, because the user has asked for nothing for too long; return when he asks again."""
        _log.warning(
            "%s: nothing was asked for in %g s, so this member gives its partitions to others until something is; "
            "raise poll_timeout_s if that is how long it takes",
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
            _log.info("%s: nobody heard that this member leaves: %s", self, told(error))
        before = self._assignment.cursor.progress
        while self._assignment.cursor.progress == before and not self._is_waiting():  # noqa: ASYNC110 (nobody tells)
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
        asked = pb.GroupWish(
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
        return Membership(self._group, secrets.token_hex(16), asked, group_options.session_timeout_s, ended_id)


class _Idle:
    """How long the user has had something to do and has not asked for more."""

    def __init__(self, timeout_s: float, now: float) -> None:
        self._timeout_s = timeout_s
        self._progress: object = None
        self._since = now

    def is_too_long(self, now: float, progress: object, *, waits: bool) -> bool:
        if waits or progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since >= self._timeout_s
