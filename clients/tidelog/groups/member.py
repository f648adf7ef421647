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
from tidelog.base.tasks import cancel_all
from tidelog.cluster.routing import Router
from tidelog.errors import MemberFencedError, TidelogError, UnknownTopicError, told
from tidelog.groups.commits import GroupCommits, store_by_and_by, store_quietly
from tidelog.groups.membership import Membership, Place
from tidelog.groups.options import ASSIGNORS, Group
from tidelog.groups.partition_handover import Handover
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
TURN_S: Final = 0.05
"""A user who never waits gives the member a turn so often."""
TURN_STEPS: Final = 4
"""Steps of the event loop that take an answer in and the next question out."""
LEAVE_TIMEOUT_S: Final = 2.0
IDLE_LOOK_S: Final = 0.5

_log: Final = logging.getLogger("tidelog.consumer")


class GroupMember:
    """See the module.

    Args:
        router: the client's.
        options, wish: what the consumer was asked for.
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
        wish: Group,
        assignment: Assignment,
        make_handover: Callable[..., Handover],
        *,
        client_id: str,
        is_waiting: Callable[[], bool],
    ) -> None:
        assert options.group is not None
        self._router = router
        self._group = options.group
        self._options = options
        self._wish = wish
        self._assignment = assignment
        self._client_id = client_id
        self._is_waiting = is_waiting
        self.turn_at = 0.0
        self._born_us = time.time_ns() // 1000
        """The same for all lives, or two processes with one instance id would take it from each other for ever."""
        self._read = ", ".join(options.topics) if options.pattern is None else f"topics like {options.pattern.text!r}"
        self._life: Membership | None = None
        self._is_known = False
        """Whether a coordinator may have heard of the member."""
        self._closed = False
        self._coordinates: TopicPartition | None = None
        """The partition whose owner coordinates the group, once it is known how many there are."""
        self._news = asyncio.Event()
        self._running: list[asyncio.Task[None]] = []
        self.commits = GroupCommits(router, lambda: assignment.topic_ids, lambda: self._life)
        self.handover = make_handover(commits=self.commits, changed=self._news.set)
        assignment.let_go = lambda _: True
        assignment.loads = self._loads = LoadMeter(time.monotonic)
        assignment.doubt(self._is_over)

    @property
    def generation(self) -> int:
        """The group's generation as this member knows it; 0 before it has joined."""
        return 0 if self._life is None else self._life.generation

    @property
    def member_id(self) -> str:
        """What this member is called in its group by now; empty before it asks to join."""
        return "" if self._life is None else self._life.member_id

    @property
    def reads_until(self) -> float:
        """By `session_time`, until when nobody else may have what this member reads, as is known so far."""
        return 0.0 if self._life is None else self._life.ends_at

    def begin(self) -> None:
        """Join, and stay a member until `close`."""
        self._run(self._stay(), f"member of {self._group}")
        if self._wish.commit == "auto":
            work = store_by_and_by(
                self.commits, self._assignment.cursor.processed, self._wish.commit_interval_s, self._group
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
        for _ in range(TURN_STEPS):
            await asyncio.sleep(0)
        left_s = TURN_S
        while (life := self._life) is not None and self._running and not self._running[0].done():
            if not life.is_over(session_time()):
                left_s = min(TURN_S, life.ends_at - session_time()) if life.is_joined else TURN_S
                break
            await asyncio.sleep(IDLE_LOOK_S / 50)
        self.turn_at = session_time() + left_s

    async def close(self, *, commits_hand: bool) -> None:
        """Give everything up and leave; a static member's partitions wait for it."""
        self._closed = True  # a callback that closes is called by a task that is not ended here
        await cancel_all(self._running)
        life, self._running = self._life, []
        if life is None:
            return
        if life.is_joined:
            await self.handover.end(life, commits_hand=commits_hand)
        self._life = None
        if not self._is_known:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                last = life.leaving() if self._wish.instance_id is None else life.stopping()
                await self._ask(last, wait_ms=0)
        except (TidelogError, TimeoutError) as error:
            _log.info("%s: could not tell the coordinator; the member leaves when its session is over: %s", self, error)

    def __str__(self) -> str:
        return f"{self._read}: group {self._group!r}"

    # --------------------------------------------------------------------------------------------- internals

    def _is_over(self) -> bool:
        """Whether others may have the partitions, as this process was stopped or its event loop held up for long."""
        return self._life is not None and self._life.is_over(session_time())

    async def _stay(self) -> None:
        refused, ended_id = Backoff(), ""
        try:
            await self.handover.beginnings.look()
        except TidelogError as error:
            self._assignment.broken(error)
            return
        while not self._closed:
            life = self._life = self._new_life(ended_id)
            try:
                await self._as_member(life)
            except MemberFencedError as error:
                if not life.is_joined:
                    wait_s = refused.next_wait_s(1000)
                    _log.warning(
                        "%s: this process may not join, and tries again in %.1f s: %s", self, wait_s, told(error)
                    )
                    await asyncio.sleep(wait_s)
                else:
                    _log.warning("%s: this process was a member and joins anew: %s", self, told(error))
            except TidelogError as error:
                await self.handover.lose(life)
                self._assignment.broken(error)
                return
            await self.handover.lose(life)
            ended_id = life.member_id if life.is_joined else ended_id

    async def _as_member(self, life: Membership) -> None:
        """Live as a member until that is over.

        Raises:
            MemberFencedError: the coordinator says so.
            TidelogError: no trying again helps.
        """
        wait_ms = int(min(self._wish.session_timeout_s, self._wish.poll_timeout_s) * 1000) // WAIT_SHARE
        backoff, idle = Backoff(), _Idle(self._wish.poll_timeout_s, time.monotonic())
        is_late = False
        while not life.is_over(sent_at := session_time()):
            self._news.clear()
            try:
                # After a failure the session has run on, so the next answer is to come at once.
                said = life.heartbeat(wait_ms=0 if is_late else wait_ms, loads=self._loads_of(life))
                reply = await self._unless_news(life, said)
            except TidelogError as error:
                is_late = True
                if not error.retriable:
                    raise
                if self._coordinates is not None:
                    self._router.learn_from(OFFSETS_TOPIC, error, self._coordinates.partition)
                with contextlib.suppress(TimeoutError):  # whatever it waits for, the end of the session is not to pass
                    async with asyncio.timeout(life.ends_at - session_time() if life.is_joined else None):
                        await self._router.news(OFFSETS_TOPIC, backoff.next_wait_s(error.retry_after_ms))
                continue
            backoff.reset()
            if reply is not None:
                is_late = False
                change = life.answered(reply, sent_at=sent_at, now=session_time())
                self.handover.give_up(life, change.gives_up)
                self.handover.take_up(life, change.begins)
            if idle.is_too_long(time.monotonic(), self._assignment.cursor.progress, waits=self._is_waiting()):
                await self._sit_out(life)
                return
        _log.warning(
            "%s: the coordinator was not heard for %g s; others may read what this member read, and it joins anew, "
            "to go on where the group has committed",
            self,
            self._wish.session_timeout_s,
        )

    def _loads_of(self, life: Membership) -> dict[Place, float]:
        """Return how much is read of the partitions that the coordinator is to be told of now."""
        if not life.wants_loads:
            return {}
        ids = self._assignment.topic_ids
        return {(ids[topic], number): rate for (topic, number), rate in self._loads.due().items() if topic in ids}

    async def _unless_news(self, life: Membership, said: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply | None:
        """Ask; None if there was something new to say before the answer, or the session ends.

        Raises:
            TidelogError: there is no answer.
        """
        loop = asyncio.get_running_loop()
        asking = loop.create_task(self._ask(said, wait_ms=said.wait_ms))
        hearing = loop.create_task(self._news.wait())
        try:
            patience_s = life.ends_at - session_time() if life.is_joined else None
            await asyncio.wait({asking, hearing}, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, hearing):
                task.cancel()
            await asyncio.gather(asking, hearing, return_exceptions=True)

    async def _ask(self, said: pb.GroupHeartbeat, *, wait_ms: int) -> pb.GroupHeartbeatReply:
        if self._coordinates is None:
            count = (await self._router.topic(OFFSETS_TOPIC)).partition_count  # it never changes
            self._coordinates = TopicPartition(OFFSETS_TOPIC, partition_for_key(self._group.encode(), count))
        connection = await self._router.connection(*self._coordinates)
        envelope = pb.Envelope(group_heartbeat=said)
        self._is_known = True
        frame = await self._router.call_owner(self._coordinates, connection, envelope, wait_s=wait_ms / 1000)
        return frame.envelope.group_heartbeat_reply

    async def _sit_out(self, life: Membership) -> None:
        """Leave, because the user has asked for nothing for too long; return when he asks again."""
        _log.warning(
            "%s: nothing was asked for in %g s, so this member gives its partitions to others until something is; "
            "raise poll_timeout_s if that is how long it takes",
            self,
            self._wish.poll_timeout_s,
        )
        if self._wish.commit != "manual":
            await store_quietly(self.commits, self._assignment.cursor.processed(), self._group)
        await self.handover.lose(life)
        if self._closed:
            return
        try:
            await self._ask(life.leaving(), wait_ms=0)
        except TidelogError as error:
            _log.info("%s: nobody heard that this member leaves: %s", self, told(error))
        before = self._assignment.cursor.progress
        while self._assignment.cursor.progress == before and not self._is_waiting():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(IDLE_LOOK_S)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        def ran(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._assignment.broken(error)

        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(ran)
        self._running.append(task)

    def _new_life(self, ended_id: str) -> Membership:
        wish, options = self._wish, self._options
        asked = pb.GroupWish(
            topics=options.topics,
            pattern="" if options.pattern is None else options.pattern.text,
            assignor=ASSIGNORS[wish.assignor],
            instance_id=wish.instance_id or "",
            session_timeout_ms=int(wish.session_timeout_s * 1000),
            client_id=self._client_id,
            host=socket.gethostname(),
            born_us=self._born_us,
            takes_over_at_once=wish.takeover == "at_once",
        )
        return Membership(self._group, secrets.token_hex(16), asked, wish.session_timeout_s, ended_id)


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
