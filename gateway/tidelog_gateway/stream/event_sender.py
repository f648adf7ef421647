"""Sends the events of one stream: pieces of a shared feed, batches that the subscription reads, and heartbeats.

A feed writes the pieces to the connection as chunks of the answer. Other events go through an outbox, which one task
writes; until it is empty, the feed pushes no piece. The outbox is bounded: while it is full, the subscription waits.
Waiting events are counted in the budget for outgoing data; once written, the answer counts them until the kernel has
taken them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tidelog_gateway.budget.connection_output import UNSENT_BYTES, ConnectionOutput
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.feed.ring import Form
from tidelog_gateway.stream.events import HEARTBEAT, EventForm, event_of

OUTBOX_BYTES: Final = UNSENT_BYTES
"""With so much in the outbox nothing more is put into it."""


SendBody = Callable[[bytes], Awaitable[None]]
"""Sends a part of the body of the answer."""


class EventSender:
    """The outbox of one stream.

    Args:
        answer: the answer that the stream is.
        outlet: the connection's.
        heartbeat_s: after so much silence a comment is sent.
        is_chunked: whether the answer's body is written in chunks, and directly to the connection's transport.
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
        """When something was written last, of the loop's clock."""

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send one message of the subscription, when there is room for it; that it is open comes first of all."""
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
        """Send the message that `make` returns when its turn and its room have come."""
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

    def form(self, sid: int) -> Form:
        """Return how the pieces of a feed are written to the connection."""
        del sid
        return EventForm()

    async def run(self, send_body: SendBody) -> None:
        """Write what is in the outbox, for as long as this runs."""
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
                if not self.outlet.unsent_bytes:  # else the client has something to read
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
        """Write the outbox and then `last`, whether or not the client has room for them."""
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
        """Forget what was not written, and let nothing more be pushed."""
        self.outlet.direct_writes(allowed=False)
        self.outlet.give_back(self._outbox_bytes)
        self._outbox.clear()
        self._outbox_bytes = 0

    def _put(self, event: bytes) -> None:
        """Put an event into the outbox that has been counted; nothing is pushed past it."""
        self.outlet.direct_writes(allowed=False)
        self._outbox.append(event)
        self._outbox_bytes += len(event)
        self._filled.set()

    async def _has_room(self) -> None:
        while self._outbox_bytes >= OUTBOX_BYTES:
            self._emptied.clear()
            await self._emptied.wait()
