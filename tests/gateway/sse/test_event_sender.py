"""The outbox of a stream: order, limits, and its share of the budget."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.feed.ring import RingEntry
from tidelog_gateway.sse.event_sender import OUTBOX_BYTES, EventSender
from tidelog_gateway.sse.events import HEARTBEAT, RETRY_MS, EventEncoder, event_of
from tidelog_proto.limits import MIB

OPENED = {"id": 0, "ok": {"sid": 0, "offsets": {"0": 5}, "resume_token": "AQ"}}


def batch(next_offset: int) -> dict[str, Any]:
    return {"batch": {"sid": 0, "partition": 1, "records": [], "next_offset": next_offset, "resume_token": "AR"}}


class Sink:
    """A transport in which nothing waits."""

    def get_write_buffer_size(self) -> int:
        return 0


async def never() -> Any:
    await asyncio.Event().wait()


class Line:
    """A sender, and its written bytes."""

    def __init__(self, *, heartbeat_s: float = 60, is_chunked: bool = False) -> None:
        self.outgoing = ResponseBudget(1 * MIB, 1 * MIB)
        self.outlet = ConnectionOutput(self.outgoing, 30)
        self.answer = ResponseReservation(self.outlet, never)
        self.sender = EventSender(self.answer, self.outlet, heartbeat_s=heartbeat_s, is_chunked=is_chunked)
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()

    async def write(self, body: bytes) -> None:
        self.bodies.put_nowait(body)
        self.answer.shrink(0)


async def test_the_beginning_is_sent_first_then_messages_in_order() -> None:
    line = Line()
    await line.sender.send(OPENED)
    assert line.outgoing.used_bytes == 0, "a request that is refused after that holds nothing"
    await line.sender.send(batch(6))
    await line.sender.send_made(5_000, lambda: batch(9))
    await line.sender.flush(line.write, b"last")
    text = (await line.bodies.get()).decode()
    assert text.startswith(f'retry: {RETRY_MS}\nid: AQ\nevent: begin\ndata: {{"offsets":{{"0":5}}}}\n\n')
    places = [text.index(f'"next_offset":{offset}}}\n\n') for offset in (6, 9)]
    assert places == sorted(places)
    assert text.endswith("last")
    assert line.outgoing.used_bytes == 0


async def test_a_full_outbox_takes_nothing_more_until_it_is_written() -> None:
    line = Line()
    large = batch(1)
    large["batch"]["records"] = ["x" * OUTBOX_BYTES]
    await line.sender.send(large)
    sending = asyncio.create_task(line.sender.send_made(5_000, lambda: batch(99)))
    await asyncio.sleep(0.01)
    assert not sending.done()
    running = asyncio.create_task(line.sender.run(line.write))
    async with asyncio.timeout(10):
        await sending
        assert (await line.bodies.get()).count(b"data:") == 1
        assert b'"next_offset":99' in await line.bodies.get()
    running.cancel()
    await line.sender.send(batch(100))
    line.sender.drop()
    assert line.outgoing.used_bytes == 0


def may_push(line: Line) -> bool:
    return line.outlet.direct is not None


async def test_entries_are_written_to_the_transport_only_while_nothing_waits_in_the_outbox() -> None:
    line = Line(is_chunked=True)
    line.outlet.connected(cast(asyncio.Transport, Sink()))
    await line.sender.send(OPENED)
    assert not may_push(line), "the beginning comes first"
    running = asyncio.create_task(line.sender.run(line.write))
    async with asyncio.timeout(10):
        await line.bodies.get()
        await asyncio.sleep(0)
        assert may_push(line)
        await line.sender.send(batch(1))
        assert not may_push(line), "an entry would pass the batch"
        await line.bodies.get()
        await asyncio.sleep(0)
    assert may_push(line)
    running.cancel()
    line.sender.drop()
    assert not may_push(line)


async def test_entries_are_not_written_past_a_server_that_is_not_the_gateways() -> None:
    line = Line()
    line.outlet.connected(cast(asyncio.Transport, Sink()))
    running = asyncio.create_task(line.sender.run(line.write))
    await line.sender.send(OPENED)
    async with asyncio.timeout(10):
        await line.bodies.get()
    await asyncio.sleep(0.01)
    assert not may_push(line)
    running.cancel()


def test_a_entry_is_a_chunk_with_the_event_of_its_batch() -> None:
    entry = RingEntry(1, 3, 7, 1, 4, b'[{"value":"x"}]')
    event = event_of({"batch": {"partition": 1, "records": [{"value": "x"}], "next_offset": 7, "resume_token": "AR"}})
    assert EventEncoder().encode(entry, "AR") == b"%x\r\n%b\r\n" % (len(event), event)


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


class Source:
    """A feed that has pushed to the stream and has not settled yet."""

    pushed_at = 0.0


@pytest.mark.parametrize("is_settled", [False, True])
async def test_an_event_that_a_feed_has_pushed_delays_the_comment(is_settled: bool) -> None:
    line = Line(heartbeat_s=0.2)
    source = Source()
    line.outlet.sources.append(source)
    running = asyncio.create_task(line.sender.run(line.write))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(0.1)
    if is_settled:
        line.outlet.settled_at = loop.time()
    else:
        source.pushed_at = loop.time()
    async with asyncio.timeout(10):
        assert await line.bodies.get() == HEARTBEAT
    assert loop.time() - began >= 0.29
    running.cancel()
