"""Consumer group membership of a subscription: its assigned partitions, and the commits of its client.

The group's assignment decides which partitions are read. The client gets `assigned` and `revoked` messages; after
`revoked` no more records of the partition are sent. Before a partition is handed over, the client has `COMMIT_WAIT_S`
to commit the offsets that it has received, and the next owner continues after them. A lost partition already belongs to
another member.

Commits go through the consumer, which sends the generation, so the commits of a fenced member are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, Literal

from tidelog import Consumer, Group, TopicPartition
from tidelog.errors import ClosedError, MemberFencedError
from tidelog.model import Committed
from tidelog_gateway.protocol.messages import AtTime, Sub
from tidelog_gateway.protocol.ws_protocol import WsProtocol, assigned_message, revoked_message
from tidelog_gateway.subscriptions.message_sender import MessageSender

COMMIT_WAIT_S: Final = 3.0
"""How long a client may take to commit offsets of a revoked partition."""


class Membership:
    """Group membership of one subscription; the subscription's delivery creates and reads the consumer.

    Args:
        sub: the request, with `member` set.
        stopped: called after partitions were revoked, so that a waiting delivery drops their records.
    """

    def __init__(self, protocol: WsProtocol, sub: Sub, sender: MessageSender, stopped: Callable[[], None]) -> None:
        assert sub.group is not None
        self._group = sub.group
        self._protocol = protocol
        self._sid = sub.sid
        self._topic = sub.topic
        self._sender = sender
        self._stopped = stopped
        self._consumer: Consumer | None = None
        self._committed: dict[int, int] = {}
        self._has_committed = asyncio.Event()
        self._is_over = False

    def group(self) -> Group:
        """Return the group options of the consumer.

        Raises:
            InvalidRequestError: the group's name is not valid.
        """
        # No poll timeout: `Delivery` limits how long the client may give no credit, which the consumer cannot see.
        return Group(
            self._group,
            commit="manual",
            poll_timeout_s=math.inf,
            on_assigned=self._assigned,
            on_revoked=self._revoked,
            on_lost=self._lost,
        )

    def reads_with(self, consumer: Consumer) -> None:
        """Set the consumer, through which offsets are committed."""
        self._consumer = consumer

    def end(self) -> None:
        """Stop sending messages to the client, because its subscription ends."""
        self._is_over = True
        self._has_committed.set()

    async def commit(self, offsets: Mapping[int, int], note: str) -> dict[int, Committed]:
        """Commit offsets for the group; return the committed positions.

        Raises:
            TidelogError: the member was fenced, or the commit failed.
        """
        if self._consumer is None:
            raise MemberFencedError(
                "this subscription has not joined its group yet: commit after the message `assigned`"
            )
        positions = {TopicPartition(self._topic, number): offset for number, offset in offsets.items()}
        try:
            held = await self._consumer.commit(positions, note=note)
        except ClosedError as error:
            text = "this subscription has left its group, and nothing was committed; subscribe again"
            raise MemberFencedError(text) from error
        self._committed.update(offsets)
        self._has_committed.set()
        return {where.partition: position for where, position in held.items()}

    async def _assigned(self, partitions: frozenset[TopicPartition]) -> None:
        if self._is_over or self._consumer is None:
            return
        positions = self._consumer.position()
        # Here and in `_stop`, partitions that were revoked while another callback was awaited are left out.
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
                while self._has_uncommitted(numbers):
                    self._has_committed.clear()
                    await self._has_committed.wait()
        self._forget(numbers)

    async def _lost(self, partitions: frozenset[TopicPartition]) -> None:
        # A batch message that is being sent still needs the position, so positions are removed after `revoked` is sent.
        self._forget(await self._stop(partitions, lost=True))

    async def _stop(self, partitions: frozenset[TopicPartition], *, lost: bool) -> list[int]:
        """Stop sending records of partitions, send `revoked`, and return those that the client was assigned."""
        numbers = [] if self._is_over else self._announced(partitions)
        if numbers:
            self._protocol.stopped(self._sid, numbers)
            self._stopped()
            await self._sender.send(revoked_message(self._sid, numbers, lost=lost))
        return numbers

    def _announced(self, partitions: frozenset[TopicPartition]) -> list[int]:
        """Return the partitions for which the client got `assigned`."""
        positions = self._protocol.subscriptions[self._sid].positions
        return sorted(where.partition for where in partitions if where.partition in positions)

    def _has_uncommitted(self, numbers: list[int]) -> bool:
        """Return whether the client got records of some partitions that it has not committed, and may still commit."""
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
    """Return where a group without committed offsets begins, in the form that `Client.consumer` accepts."""
    return start.moment if isinstance(start, AtTime) else start
