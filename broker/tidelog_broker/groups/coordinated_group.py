"""A group at its coordinator: decisions are written, one record at a time, and then reported to waiting members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.groups.steps import Steps
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.flow.fair_scheduler import SLICE_S

T = TypeVar("T")


class CoordinatedGroup:
    """A group with its waiting members and pending writes.

    Args:
        write: makes a record durable; raises ProtocolError.
        durable_record: returns the newest durable record.
        restarted: called with the reason after undurable decisions were discarded and the group was reset to its newest
            durable record.
        settled: called when all decisions are durable.
        pace: waits until the event loop has time for another slice; see `tidelog_proto.flow.fair_scheduler`.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        *,
        tasks: Tasks,
        write: Callable[[pb.GroupRecord], Awaitable[None]],
        durable_record: Callable[[], pb.GroupRecord | None],
        restarted: Callable[[ConsumerGroup, ProtocolError], None],
        settled: Callable[[ConsumerGroup], None],
        pace: Callable[[], Awaitable[None]],
    ) -> None:
        self.group = group
        self._tasks = tasks
        self._write = write
        self._durable_record = durable_record
        self._restarted = restarted
        self._settled = settled
        self._pace = pace
        self._writing: asyncio.Future[None] | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._decided: asyncio.Future[None] | None = None
        """Set while a caller waits for `decided`."""

    def settle(self) -> asyncio.Future[None]:
        """Write all decisions so far; return a future that completes when they are durable.

        Decisions that are made during a write are written together next. If the future fails with a ProtocolError, the
        decisions were discarded at this node; a record of them may still be committed, unless the error is definite.
        """
        if self._writing is None:
            self._writing = self._tasks.loop.create_future()
            self._tasks.spawn(self._write_on(self._writing), f"group {self.group.name}")
        return self._writing

    async def decided(self) -> None:
        """Wait until the current computation of the target ends."""
        if self.group.is_deciding:
            if self._decided is None:
                self._decided = self._tasks.loop.create_future()
            await asyncio.shield(self._decided)

    async def news(self, member_id: str, *, seen_revision: int, wait_s: float) -> None:
        """Wait until a member has an assignment that it has not seen, sends another heartbeat, or is removed.

        It waits for at most `wait_s` seconds.

        Raises:
            ProtocolError: this node no longer coordinates the group.
        """
        assignment = self.group.assignment_of(member_id)
        if wait_s <= 0 or assignment is None or assignment.revision > seen_revision:
            return
        self._wake([member_id])  # End an earlier heartbeat of the same member.
        waiter = self._waiting[member_id] = self._tasks.loop.create_future()
        try:
            async with asyncio.timeout(wait_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            if self._waiting.get(member_id) is waiter:
                del self._waiting[member_id]

    def removed(self, member_ids: Iterable[str]) -> None:
        """Wake waiting members that were removed."""
        self._wake(member_ids)

    def fail(self, error: ProtocolError) -> None:
        """Fail all waiting members: this node no longer coordinates the group."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(error)
        if self._writing is not None and not self._writing.done():
            self._writing.set_exception(error)
            self._writing.exception()  # Retrieved here in case no caller waits for the result.

    def _wake(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            waiter = self._waiting.pop(member_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _write_on(self, writing: asyncio.Future[None]) -> None:
        try:
            await asyncio.sleep(0)  # Requests in one iteration of the event loop share a record.
            while True:
                await self._pace()  # Requests that arrive during the wait share the record, too.
                await self._decide(writing)
                record = await self._in_slices(self.group.record_steps(), writing)
                if writing.done() or record is None:
                    break
                await self._make_durable(record)
                self._wake(await self._in_slices(self.group.written_steps(record), writing))
        except ProtocolError as error:
            self.group.restart(self._durable_record(), in_doubt=not NATURE[error.code].definite)
            self._restarted(self.group, error)
            self._writing = None
            if not writing.done():
                writing.set_exception(error)
                writing.exception()
            return
        self._writing = None
        if not writing.done():
            writing.set_result(None)
            self._settled(self.group)

    async def _decide(self, writing: asyncio.Future[None]) -> None:
        """Recompute the target assignment, and wake the callers of `decided`.

        Raises:
            ProtocolError: this node no longer coordinates the group.
        """
        steps = self.group.decide_steps()
        try:
            await self._in_slices(steps, writing)
        finally:
            steps.close()
            if self._decided is not None:
                self._decided.set_result(None)
                self._decided = None

    async def _in_slices(self, steps: Steps[T], writing: asyncio.Future[None]) -> T:
        """Run a computation in slices, between which the event loop does other work, and return its result.

        Raises:
            ProtocolError: this node no longer coordinates the group.
        """
        ends_s = time.perf_counter() + SLICE_S
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            if time.perf_counter() >= ends_s:
                await self._pace()
                if writing.done():
                    writing.result()
                ends_s = time.perf_counter() + SLICE_S

    async def _make_durable(self, record: pb.GroupRecord) -> None:
        """Write a record and check that it is the newest, so that every later coordinator reads what members got.

        A pending record from an earlier epoch of this node may have the same revision and be committed first.
        """
        await self._write(record)
        if self._durable_record() != record:
            raise ProtocolError(
                pb.EPOCH_CHANGING,
                f"another record of group {self.group.name!r} was committed before this one; retry",
            )
