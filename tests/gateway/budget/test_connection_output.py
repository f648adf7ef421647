from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog_gateway.budget.connection_output import UNSENT_BYTES, Outlet
from tidelog_gateway.budget.load_shedding import PROGRESS_BYTES
from tidelog_gateway.budget.response_budget import Outgoing
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import MIB


class Line(asyncio.Transport):
    """A line whose client takes what the test says, and an event loop that never tells of it."""

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
def outgoing() -> Outgoing:
    return Outgoing(10 * MIB, 4 * MIB)


def connected(outgoing: Outgoing, slow_timeout_s: float = 30) -> tuple[Outlet, Line]:
    outlet, line = Outlet(outgoing, slow_timeout_s), Line()
    outlet.connected(line)
    return outlet, line


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - looking again is what is tested
            await asyncio.sleep(0.005)


async def test_a_piece_that_was_sent_counts_until_all_of_it_has_left(outgoing: Outgoing) -> None:
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


async def test_what_a_lost_connection_was_sent_is_given_back(outgoing: Outgoing) -> None:
    outlet, line = connected(outgoing)
    assert outlet.take(2 * MIB)
    line.unsent = MIB
    outlet.sent(MIB)
    outlet.lost()
    assert outgoing.used_bytes == MIB, "what nobody has sent yet is somebody's"
    outlet.give_back(MIB)
    assert (outgoing.used_bytes, outlet.held_bytes, outgoing.holders) == (0, 0, set())


async def test_one_connection_has_its_share(outgoing: Outgoing) -> None:
    outlet, _ = connected(outgoing)
    other, _ = connected(outgoing)
    assert outlet.take(5 * MIB), "a single answer may pass"
    assert not outlet.take(1)
    assert other.take(MIB)
    outlet.give_back(5 * MIB)
    assert outlet.take_prefetch(2 * MIB)
    assert not outlet.take_prefetch(1), "half of it is for records read ahead"
    assert outlet.take(3 * MIB), "which do not stop a message"


async def test_waiting_for_room_ends_with_503_or_when_there_is_some(outgoing: Outgoing) -> None:
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


async def test_whoever_takes_nothing_gives_way_to_who_waits(outgoing: Outgoing) -> None:
    deaf, line = connected(outgoing)
    polite, _ = connected(outgoing)
    assert deaf.take(10 * MIB)
    line.unsent = 10 * MIB
    deaf.sent(10 * MIB)
    async with asyncio.timeout(10):
        await polite.reserve(MIB, 30)
    assert line.aborted
    assert outgoing.used_bytes == MIB


async def test_a_slow_client_is_told_of_once_and_then_cut(outgoing: Outgoing) -> None:
    outlet, line = connected(outgoing, slow_timeout_s=2.0)
    told: list[bool] = []
    outlet.on_slow = lambda: told.append(line.aborted)
    assert outlet.take(MIB)
    line.unsent = MIB
    outlet.sent(MIB)
    await until(lambda: line.aborted)
    assert told == [False]
    assert outgoing.used_bytes == 0


async def test_without_better_manners_a_slow_client_is_cut_at_once(outgoing: Outgoing) -> None:
    outlet, line = connected(outgoing, slow_timeout_s=0.05)
    line.unsent = 1
    outlet.look()
    await until(lambda: line.aborted)


async def test_drops_are_no_progress_and_a_good_piece_is(outgoing: Outgoing) -> None:
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


async def test_the_next_message_waits_until_little_waits(outgoing: Outgoing) -> None:
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


async def test_what_is_pushed_counts_only_if_the_kernel_does_not_take_it(outgoing: Outgoing) -> None:
    outlet, line = connected(outgoing)
    assert outlet.push(b"x" * 1000)
    assert (outgoing.used_bytes, line.written) == (0, [b"x" * 1000])
    line.kernel_has_room = False
    pushed = 0
    while outlet.push(b"y" * 10_000):
        pushed += 1
    assert line.unsent == outgoing.used_bytes == pushed * 10_000
    assert UNSENT_BYTES < line.unsent <= UNSENT_BYTES + 10_000, "as much as may wait when a message is built"
    line.unsent = 0
    await until(lambda: outgoing.used_bytes == 0)


async def test_nothing_is_pushed_without_room_or_a_connection(outgoing: Outgoing) -> None:
    outlet, line = connected(outgoing)
    other, _ = connected(outgoing)
    line.kernel_has_room = False
    assert outlet.push(b"x")
    assert other.take(11 * MIB - outgoing.used_bytes) is False
    other.take_anyway(11 * MIB)
    assert not outlet.push(b"y" * UNSENT_BYTES), "it would wait behind the first, and there is no room for that"
    line.abort()
    assert not outlet.push(b"z")
    outlet.lost()
    assert not outlet.push(b"z")
    assert line.written == [b"x"]
    assert not Outlet(outgoing, 30).push(b"z"), "a server that is not the gateway's"
