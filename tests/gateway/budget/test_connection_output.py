from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog_gateway.budget.connection_output import LOOK_MAX_S, UNSENT_BYTES, ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.shedding_bounds import PROGRESS_BYTES
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import MIB


class Line(asyncio.Transport):
    """A transport whose client reads as much as the test sets, on an event loop without notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.aborted = False

        self.kernel_has_room = True
        self.written: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written.append(bytes(data))
        if self.unsent or not self.kernel_has_room:
            self.unsent += len(data)

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def outgoing() -> ResponseBudget:
    return ResponseBudget(10 * MIB, 4 * MIB)


def connected(outgoing: ResponseBudget, slow_timeout_s: float = 30) -> tuple[ConnectionOutput, Line]:
    outlet, line = ConnectionOutput(outgoing, slow_timeout_s), Line()
    outlet.connected(line)
    return outlet, line


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - repeated checks are tested
            await asyncio.sleep(0.005)


async def test_a_piece_counts_until_it_is_sent_completely(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    assert outlet.take(2 * MIB)
    line.unsent = 2 * MIB
    outlet.sent(MIB)
    outlet.sent(MIB)
    assert outgoing.used_bytes == 2 * MIB
    line.unsent = MIB + 1000
    outlet.look()
    assert outgoing.used_bytes == 2 * MIB, "the event loop keeps the whole piece"
    line.unsent = 1000
    await until(lambda: outgoing.used_bytes == MIB)
    line.unsent = 0
    await until(lambda: outgoing.used_bytes == 0)
    assert not outgoing.holders


async def test_the_bytes_of_a_lost_connection_are_returned(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    assert outlet.take(2 * MIB)
    line.unsent = MIB
    outlet.sent(MIB)
    outlet.lost()
    assert outgoing.used_bytes == MIB, "an answer that has not been sent keeps its reservation"
    outlet.give_back(MIB)
    assert (outgoing.used_bytes, outlet.held_bytes, outgoing.holders) == (0, 0, set())


async def test_one_connection_is_limited_to_its_share(outgoing: ResponseBudget) -> None:
    outlet, _ = connected(outgoing)
    other, _ = connected(outgoing)
    assert outlet.take(5 * MIB), "a single answer may exceed the share"
    assert not outlet.take(1)
    assert other.take(MIB)
    outlet.give_back(5 * MIB)
    assert outlet.take_prefetch(2 * MIB)
    assert not outlet.take_prefetch(1), "half of it is for records read ahead"
    assert outlet.take(3 * MIB), "records read ahead do not block a message"


async def test_waiting_for_room_ends_with_room_or_503(outgoing: ResponseBudget) -> None:
    first, _ = connected(outgoing)
    second, _ = connected(outgoing)
    assert first.take(10 * MIB)
    with pytest.raises(Problem) as caught:
        await second.reserve(MIB, 0.05)
    assert (caught.value.status, caught.value.retryable, caught.value.retry_after_s) == (503, True, 1)
    waiting = asyncio.create_task(second.reserve(MIB, 30))
    await asyncio.sleep(0)
    first.give_back(10 * MIB)
    async with asyncio.timeout(10):
        await waiting
    assert second.held_bytes == MIB


async def test_connections_that_do_not_read_are_closed_for_waiting_ones(outgoing: ResponseBudget) -> None:
    deaf, line = connected(outgoing)
    polite, _ = connected(outgoing)
    assert deaf.take(10 * MIB)
    line.unsent = 10 * MIB
    deaf.sent(10 * MIB)
    async with asyncio.timeout(10):
        await polite.reserve(MIB, 30)
    assert line.aborted
    assert outgoing.used_bytes == MIB


async def test_a_slow_client_is_reported_once_and_then_disconnected(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing, slow_timeout_s=2.0)
    told: list[bool] = []
    outlet.on_slow = lambda: told.append(line.aborted)
    assert outlet.take(MIB)
    line.unsent = MIB
    outlet.sent(MIB)
    await until(lambda: line.aborted)
    assert told == [False]
    assert outgoing.used_bytes == 0


async def test_a_slow_client_is_disconnected_after_twice_the_timeout(
    outgoing: ResponseBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real_s, later_s = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real_s() + later_s)
    outlet, line = connected(outgoing, slow_timeout_s=1000)
    told: list[bool] = []
    outlet.on_slow = lambda: told.append(line.aborted)
    line.unsent = 1
    outlet.look()
    for idle_s, expected in ((900.0, ([], False)), (1900.0, ([False], False)), (2000.0, ([False], True))):
        later_s = idle_s
        await asyncio.sleep(2 * LOOK_MAX_S)
        assert (told, line.aborted) == expected


async def test_by_default_a_slow_client_is_disconnected_at_once(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing, slow_timeout_s=0.05)
    line.unsent = 1
    outlet.look()
    await until(lambda: line.aborted)


async def test_few_bytes_are_not_progress_and_a_large_piece_is(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    line.unsent = MIB
    outlet.look()
    await asyncio.sleep(0.02)
    idle_s = outlet.idle_s()
    assert idle_s > 0
    line.unsent -= PROGRESS_BYTES - 1
    assert outlet.idle_s() >= idle_s
    line.unsent -= 1
    assert outlet.idle_s() < idle_s
    line.unsent = 0
    assert outlet.idle_s() == 0
    outlet.lost()


async def test_progress_counts_from_the_most_that_has_waited(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    line.unsent = MIB
    outlet.look()
    await asyncio.sleep(0.02)
    line.unsent += MIB  # more is sent to it
    idle_s = outlet.idle_s()
    assert idle_s > 0
    line.unsent -= PROGRESS_BYTES
    assert outlet.idle_s() < idle_s
    outlet.lost()


async def test_the_next_message_waits_until_the_buffer_is_nearly_empty(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    await outlet.room()
    line.unsent = UNSENT_BYTES + 1
    waiting = asyncio.create_task(outlet.room())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    line.unsent = UNSENT_BYTES
    async with asyncio.timeout(10):
        await waiting
    outlet.lost()


async def test_pushed_bytes_count_only_if_the_kernel_does_not_take_them(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    assert outlet.push(b"x" * 1000)
    assert (outgoing.used_bytes, line.written) == (0, [b"x" * 1000])
    line.kernel_has_room = False
    pushed = 0
    while outlet.push(b"y" * 10_000):
        pushed += 1
    assert line.unsent == outgoing.used_bytes == pushed * 10_000
    assert UNSENT_BYTES < line.unsent <= UNSENT_BYTES + 10_000, "at most a message above the limit"
    line.unsent = 0
    await until(lambda: outgoing.used_bytes == 0)


async def test_nothing_is_pushed_without_room_or_a_connection(outgoing: ResponseBudget) -> None:
    outlet, line = connected(outgoing)
    other, _ = connected(outgoing)
    line.kernel_has_room = False
    assert outlet.push(b"x")
    assert other.take(11 * MIB - outgoing.used_bytes) is False
    other.take_anyway(11 * MIB)
    assert not outlet.push(b"y" * UNSENT_BYTES), "it would have to wait, and the budget has no room"
    line.abort()
    assert not outlet.push(b"z")
    outlet.lost()
    assert not outlet.push(b"z")
    assert line.written == [b"x"]
    assert not ConnectionOutput(outgoing, 30).push(b"z"), "another server without a transport"
