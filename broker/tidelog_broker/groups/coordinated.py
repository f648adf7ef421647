"""A group at its coordinator: what is decided is written, one record after the other, and then told to who waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.membership import ConsumerGroup
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError


class Coordinated:
    """A group, who waits for news of it, and its writing.

    Args:
        group: as it stands.
        tasks: the node's.
        write: makes a record durable; raises ProtocolError.
        standing: gives the newest durable record there is by now.
        restarted: is called when what was decided has been forgotten, and all begins again from that record; with what
            the reason was.
        settled: is called when all that was decided is durable.
        pace: waits until the event loop may be kept for another record; see `tidelog_proto.process.fair_scheduler`.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        *,
        tasks: Tasks,
        write: Callable[[pb.GroupRecord], Awaitable[None]],
        standing: Callable[[], pb.GroupRecord | None],
        restarted: Callable[[ConsumerGroup, ProtocolError], None],
        settled: Callable[[ConsumerGroup], None],
        pace: Callable[[], Awaitable[None]],
    ) -> None:
        self.group = group
        self._tasks = tasks
        self._write = write
        self._standing = standing
        self._restarted = restarted
        self._settled = settled
        self._pace = pace
        self._writing: asyncio.Future[None] | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def settle(self) -> asyncio.Future[None]:
        """Have everything written that was decided so far; return what is done when it is durable.

        What is decided while something is being written is written together, next. The future's failure, a
        ProtocolError, is that of all who wait for it: what was decided is forgotten then.
        """
        if self._writing is None:
            self._writing = self._tasks.loop.create_future()
            self._tasks.spawn(self._write_on(self._writing), f"group {self.group.name}")
        return self._writing

    async def news(self, member_id: str, *, seen_revision: int, wait_s: float) -> None:
        """Return when there is something to tell a member that it has not seen, when it is one no longer, or in time.

        Raises:
            ProtocolError: nothing can be told here any more.
        """
        told = self.group.assignment_of(member_id)
        if wait_s <= 0 or told is None or told.revision > seen_revision:
            return
        self._wake([member_id])  # an earlier question of the same member
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
        """Let those be told at once who are members no longer."""
        self._wake(member_ids)

    def fail(self, error: ProtocolError) -> None:
        """Nothing can be told here any more: say so to who waits."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(error)
        if self._writing is not None and not self._writing.done():
            self._writing.set_exception(error)
            self._writing.exception()  # whether or not anybody waits for it

    def _wake(self, member_ids: Iterable[str]) -> None:
        for member_id in member_ids:
            waiter = self._waiting.pop(member_id, None)
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _write_on(self, writing: asyncio.Future[None]) -> None:
        try:
            await asyncio.sleep(0)  # who comes in the same moment goes into the same record
            while True:
                await self._pace()  # what members want meanwhile goes into the same record, too
                self.group.decide()
                await asyncio.sleep(0)
                if writing.done() or (record := self.group.next_record()) is None:
                    break
                await self._make_durable(record)
                self._wake(self.group.written(record))
        except ProtocolError as error:
            self.group.restart(self._standing(), in_doubt=not NATURE[error.code].definite)
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

    async def _make_durable(self, record: pb.GroupRecord) -> None:
        """Write a record, and see that it stands: told is only what every later coordinator finds, too.

        One that was on its way when this node began an epoch anew may have its revision, and come about before it.
        """
        await self._write(record)
        if self._standing() != record:
            raise ProtocolError(
                pb.EPOCH_CHANGING,
                f"another record of the group {self.group.name!r} has come about before this one; send again",
            )
