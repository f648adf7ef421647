"""The outbox of a stream: order, bounds, and what it holds of the budget."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidelog_gateway.answers import Answer
from tidelog_gateway.feed.ring import Piece
from tidelog_gateway.feed.shared_feed import SharedFeed
from tidelog_gateway.outgoing import Outgoing
from tidelog_gateway.outlet import Outlet
from tidelog_gateway.stream.event_sender import OUTBOX_BYTES, EventSender
from tidelog_gateway.stream.events import HEARTBEAT, RETRY_MS, piece_event
from tidelog_proto.limits import MIB


class OneFeed:
    """The part of a feed that a sender uses."""

    def event(self, piece: Piece, encode: Any) -> bytes:
        data: bytes = encode(piece, "token")
        return data


FEED = cast(SharedFeed, OneFeed())
OPENED = {"id": 0, "ok": {"sid": 0, "offsets": {"0": 5}, "resume_token": "AQ"}}


def piece(next_offset: int, size: int = 1) -> Piece:
    return Piece(0, next_offset - 1, next_offset, 1, size, b'["%b"]' % (b"x" * size))


def batch(next_offset: int) -> dict[str, Any]:
    return {"batch": {"sid": 0, "partition": 1, "records": [], "next_offset": next_offset, "resume_token": "AR"}}


async def never() -> Any:
    await asyncio.Event().wait()


class Line:
    """A sender, and what it has written."""

    def __init__(self, *, heartbeat_s: float = 60) -> None:
        self.outgoing = Outgoing(1 * MIB, 1 * MIB)
        self.outlet = Outlet(self.outgoing, 30)
        self.answer = Answer(self.outlet, never)
        self.sender = EventSender(self.answer, self.outlet, heartbeat_s=heartbeat_s)
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, body: bytes) -> None:
        self.bodies.put_nowait(body)
        self.answer.shrink(0)


async def test_the_beginning_comes_first_then_what_was_pushed_and_sent_in_order() -> None:
    line = Line()
    await line.sender.send(OPENED)
    assert line.outgoing.used_bytes == 0, "a request that is refused after that holds nothing"
    assert line.sender.push(FEED, piece(6), 0)
    await line.sender.send(batch(9))
    assert line.sender.push(FEED, piece(7), 0)
    await line.sender.flush(line.write, b"last")
    text = (await line.bodies.get()).decode()
    assert text.startswith(f'retry: {RETRY_MS}\nid: AQ\nevent: begin\ndata: {{"offsets":{{"0":5}}}}\n\n')
    places = [text.index(f'"next_offset":{offset}}}\n\n') for offset in (6, 9, 7)]
    assert places == sorted(places)
    assert text.endswith("last")
    assert line.outgoing.used_bytes == 0


async def test_a_full_outbox_takes_nothing_more_until_it_is_written() -> None:
    line = Line()
    pushed = 0
    while line.sender.push(FEED, piece(pushed + 1, 10_000), 0):
        pushed += 1
    assert pushed == -(-OUTBOX_BYTES // len(piece_event(piece(1, 10_000), "token")))
    sending = asyncio.create_task(line.sender.send_made(5_000, lambda: batch(99)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    running = asyncio.create_task(line.sender.run(line.write))
    async with asyncio.timeout(10):
        await sending
        assert (await line.bodies.get()).count(b"data:") == pushed
        assert b'"next_offset":99' in await line.bodies.get()
    running.cancel()
    assert line.sender.push(FEED, piece(pushed + 1), 0)
    line.sender.drop()
    assert line.outgoing.used_bytes == 0


async def test_nothing_is_pushed_past_what_waits_to_be_sent() -> None:
    line = Line()
    line.outlet.take(1 * MIB)  # no room
    sending = asyncio.create_task(line.sender.send(batch(1)))
    await asyncio.sleep(0)
    assert not line.sender.push(FEED, piece(2), 0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_a_message_that_cannot_be_made_holds_nothing() -> None:
    line = Line()

    def fail() -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await line.sender.send_made(1000, fail)
    await line.sender.send_made(1, lambda: batch(3))  # longer than expected: counted all the same
    assert line.outgoing.used_bytes > 1
    line.sender.drop()
    assert line.outgoing.used_bytes == 0


async def test_silence_is_broken_by_a_comment() -> None:
    line = Line(heartbeat_s=0.02)
    running = asyncio.create_task(line.sender.run(line.write))
    async with asyncio.timeout(10):
        assert [await line.bodies.get() for _ in range(2)] == [HEARTBEAT] * 2
    running.cancel()
