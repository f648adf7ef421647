"""A subscription as a member of a consumer group: which partitions it has by now, and what its client commits.

The group decides which partitions are read. The client is told of what it gets, and of what it has to give up; nothing
more of that is sent then. What it was sent and has not committed it may commit for a moment before another member gets
the partition, which then goes on behind it. A partition that was lost is another member's already.

Commits go through the consumer, which names the generation: one that was fenced is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal

from tidelog import Consumer, Group, TopicPartition
from tidelog.errors import MemberFencedError
from tidelog.model import Committed
from tidelog_gateway.websocket.messages import AtTime, Sub
from tidelog_gateway.websocket.sending import MessageSender
from tidelog_gateway.websocket.ws_protocol import WsProtocol, assigned_message, revoked_message

COMMIT_WAIT_S: Final = 3.0
"""How long a client may take to commit what it was sent of a partition that it has to give up."""


class Membership:
    """See the module. The consumer is read by the delivery, which makes it.

    Args:
        protocol: of the connection.
        sub: what was asked for, as a member of a group.
        sender: the connection's.
        gave_up: called when nothing more is to be sent of some partitions.
    """

    def __init__(self, protocol: WsProtocol, sub: Sub, sender: MessageSender, gave_up: Callable[[], None]) -> None:
        assert sub.group is not None
        self._group = sub.group
        self._protocol = protocol
        self._sid = sub.sid
        self._topic = sub.topic
        self._sender = sender
        self._gave_up = gave_up
        self._consumer: Consumer | None = None
        self._committed: dict[int, int] = {}
        self._has_committed = asyncio.Event()
        self._is_over = False

    def wish(self) -> Group:
        """Return what the consumer is to be in the group.

        Raises:
            InvalidRequestError: no group may have that name.
        """
        # Whether the client takes anything is judged by its credit, see `Delivery`: a consumer does not know of that.
        return Group(
            self._group,
            commit="manual",
            poll_timeout_s=math.inf,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
        )

    def reads_with(self, consumer: Consumer) -> None:
        """Take the consumer that is the member."""
        self._consumer = consumer

    def end(self) -> None:
        """Tell the client nothing more: its subscription ends."""
        self._is_over = True
        self._has_committed.set()

    async def commit(self, offsets: Mapping[int, int], note: str) -> dict[int, Committed]:
        """Keep positions for the group; return what holds now.

        Raises:
            TidelogError: the member was fenced, or nobody could keep them.
        """
        if self._consumer is None:
            raise MemberFencedError("this subscription is no member of its group yet")
        wanted = {TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
        held = await self._consumer.commit(wanted, note=note)
        self._committed.update(offsets)
        self._has_committed.set()
        return {where.partition: position for where, position in held.items()}

    async def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if self._is_over or self._consumer is None:
            return
        positions = self._consumer.position()
        # What went again while another callback was waited for is not told of, neither now nor when that is told.
        offsets = {where.partition: positions[where] for where in sorted(partitions) if where in positions}
        if not offsets:
            return
        self._committed.update(offsets)
        self._protocol.assigned(self._sid, offsets)
        await self._sender.send(assigned_message(self._sid, offsets))

    async def _revoked(self, partitions: frozenset[TopicPartition]) -> None:
        numbers = await self._stop(partitions, lost=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COMMIT_WAIT_S):
                while self._owes(numbers):
                    self._has_committed.clear()
                    await self._has_committed.wait()
        self._forget(numbers)

    async def _lost(self, partitions: frozenset[TopicPartition]) -> None:
        # What is on its way to the socket is sent before the message and moves the position, which is forgotten last.
        self._forget(await self._stop(partitions, lost=True))

    async def _stop(self, partitions: frozenset[TopicPartition], *, lost: bool) -> list[int]:
        """Send nothing more of partitions, and say so; return those of them that the client knows to be its."""
        numbers = [] if self._is_over else self._told_of(partitions)
        if numbers:
            self._protocol.stopped(self._sid, numbers)
            self._gave_up()
            await self._sender.send(revoked_message(self._sid, numbers, lost=lost))
        return numbers

    def _told_of(self, partitions: frozenset[TopicPartition]) -> list[int]:
        """Return those of some partitions that the client knows to be its."""
        positions = self._protocol.subscriptions[self._sid].positions
        return sorted(where.partition for where in partitions if where.partition in positions)

    def _owes(self, numbers: list[int]) -> bool:
        """Whether the client was sent what it has not committed, and still may."""
        if self._is_over:
            return False
        positions = self._protocol.subscriptions[self._sid].positions
        return any(self._committed.get(number, -1) < positions.get(number, -1) for number in numbers)

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            self._committed.pop(number, None)
        if not self._is_over:
            self._protocol.revoked(self._sid, numbers)


def start_of(start: Literal["earliest", "latest"] | AtTime) -> Literal["earliest", "latest"] | datetime:
    """Return where a group begins that has committed nothing."""
    return datetime.fromtimestamp(start.timestamp_ms / 1000, UTC) if isinstance(start, AtTime) else start
