"""Sender of one event stream: messages of a shared feed, batches that the subscription reads, and heartbeats.

A feed writes its messages to the connection as chunks of the response. Other events go through an outbox, which one
task writes; the feed pushes nothing until the outbox is empty. The outbox is bounded: the subscription waits while it
is full. Events in the outbox are counted in the response budget; written events are counted by the response until the
kernel has taken them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidelog_gateway.budget.connection_output import UNSENT_BYTES, ConnectionOutput
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.feed.ring import EntryEncoder
from tidelog_gateway.sse.events import HEARTBEAT, EventEncoder, event_of

OUTBOX_BYTES: Final = UNSENT_BYTES
"""Size at which the outbox is full."""


SendBody = Callable[[bytes], Awaitable[None]]
"""Sends a part of the response body."""


class EventSender:
    """Sends the events of one stream through an outbox.

    Args:
        heartbeat_s: a comment is sent after this time without an event.
        is_chunked: whether the response body is chunked and written directly to the connection's transport.
    """

    def __init__(
        self, answer: ResponseReservation, outlet: ConnectionOutput, *, heartbeat_s: float, is_chunked: bool = False
    ) -> None:
        self.outlet = outlet
        self._answer = answer
        self._heartbeat_s = heartbeat_s
        self._is_chunked = is_chunked
        self._first = b""
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._turn = asyncio.Lock()
        self._written_at = 0.0
        """Time of the last write, by the loop's clock."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Put one message of the subscription into the outbox once it fits; `ok` precedes everything else."""
        event = event_of(message)
        if "ok" in message:
            self._first = event
            self._filled.set()
            return
        async with self._turn:
            await self._has_room()
            await self.outlet.wait_for_room(len(event))
            self._put(event)

    async def send_made(self, size_bytes_max: int, make: Callable[[], Mapping[str, Any]]) -> None:
        """Wait until the budget allows a message, call `make`, and put the message that it returns into the outbox."""
        async with self._turn:
            await self._has_room()
            await self.outlet.wait_for_room(size_bytes_max)
            try:
                event = event_of(make())
            except BaseException:
                self.outlet.give_back(size_bytes_max)
                raise
            surplus_bytes = size_bytes_max - len(event)
            if surplus_bytes >= 0:
                self.outlet.give_back(surplus_bytes)
            else:
                self.outlet.take_anyway(-surplus_bytes)
            self._put(event)

    def entry_encoder(self, sid: int) -> EntryEncoder:
        """Return the encoder of a feed's messages for this connection."""
        del sid
        return EventEncoder()

    async def run(self, send_body: SendBody) -> None:
        """Write the outbox to the response until cancelled."""
        loop = asyncio.get_running_loop()
        self._written_at = loop.time()
        while True:
            try:
                async with asyncio.timeout_at(self._heartbeat_at()):
                    await self._filled.wait()
            except TimeoutError:
                if loop.time() < self._heartbeat_at():
                    continue
                self._written_at = loop.time()
                if not self.outlet.unsent_bytes:  # Bytes that are still being sent serve as a heartbeat.
                    await send_body(HEARTBEAT)
                continue
            await self.outlet.room()
            await self.flush(send_body)
            self._written_at = loop.time()
            if not self._outbox:
                self.outlet.direct_writes(allowed=self._is_chunked)

    def _heartbeat_at(self) -> float:
        return max(self._written_at, self.outlet.pushed_at) + self._heartbeat_s

    async def flush(self, send_body: SendBody, last: bytes = b"") -> None:
        """Write the outbox and then `last`, without waiting for the budget."""
        body = b"".join([self._first, *self._outbox, last])
        self._first = b""
        self._answer.adopt(self._outbox_bytes)
        self._outbox.clear()
        self._outbox_bytes = 0
        self._filled.clear()
        self._emptied.set()
        if body:
            await send_body(body)

    def drop(self) -> None:
        """Drop unwritten events and refuse further pushes."""
        self.outlet.direct_writes(allowed=False)
        self.outlet.give_back(self._outbox_bytes)
        self._outbox.clear()
        self._outbox_bytes = 0

    def _put(self, event: bytes) -> None:
        """Put a counted event into the outbox; messages of a feed must not overtake it."""
        self.outlet.direct_writes(allowed=False)
        self._outbox.append(event)
        self._outbox_bytes += len(event)
        self._filled.set()

    async def _has_room(self) -> None:
        while self._outbox_bytes >= OUTBOX_BYTES:
            self._emptied.clear()
            await self._emptied.wait()
