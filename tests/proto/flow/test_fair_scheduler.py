"""Turns are granted connection by connection, with rests for other work of the event loop."""

from __future__ import annotations

import asyncio
import time

import pytest

from tidelog_proto.flow import fair_scheduler as turns_module
from tidelog_proto.flow.fair_scheduler import SLICE_S, Turns


class FakeReader:
    """A connection whose client takes what it is sent, or does not."""

    def __init__(self) -> None:
        self.is_open = True
        self.takes = asyncio.Event()
        self.takes.set()

    @property
    def is_writable(self) -> bool:
        return self.takes.is_set() and self.is_open

    async def drained(self) -> None:
        await self.takes.wait()

    def close(self) -> None:
        self.is_open = False
        self.takes.set()


@pytest.fixture
def turns() -> Turns:
    return Turns()


async def test_connections_take_turns_and_each_keeps_its_order(turns: Turns) -> None:
    readers = [FakeReader() for _ in range(3)]
    order: list[tuple[int, int]] = []

    async def work(who: int, number: int) -> None:
        async with turns.turn(readers[who]):
            order.append((who, number))

    async with turns.turn(FakeReader()):
        many = [asyncio.create_task(work(0, number)) for number in range(5)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(work(who, 0)) for who in (1, 2)]
        await asyncio.sleep(0)
    await asyncio.gather(*many, *others)
    assert order == [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (0, 3), (0, 4)]


async def test_the_node_does_something_else_for_as_long_as_the_work_took(turns: Turns) -> None:
    """Counted in other callbacks that run in between, not in time: without rests there would be a few."""
    others = 0
    done = asyncio.Event()

    async def beside() -> None:
        nonlocal others
        while not done.is_set():
            others += 1
            await asyncio.sleep(0.0005)

    async def work() -> None:
        async with turns.turn(FakeReader()):
            began_s = time.perf_counter()
            while time.perf_counter() - began_s < 0.005:
                pass

    watcher = asyncio.create_task(beside())
    began_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(20)))
    took_s = time.perf_counter() - began_s
    done.set()
    await watcher
    assert took_s >= 0.19, "it rests as long as it works"
    assert others >= 30


async def test_a_connection_that_does_not_read_gets_no_turn_and_delays_no_other(turns: Turns) -> None:
    deaf, other = FakeReader(), FakeReader()
    deaf.takes.clear()
    done: list[str] = []

    async def work(name: str, reader: FakeReader) -> None:
        async with turns.turn(reader):
            done.append(name)

    tasks = [asyncio.create_task(work("deaf", deaf)) for _ in range(3)]
    await asyncio.wait_for(work("other", other), 5)
    assert done == ["other"]
    deaf.close()
    await asyncio.gather(*tasks)
    assert done == ["other", *["deaf"] * 3], "a closed connection gets its turn to detect that it is closed"


async def test_reader_that_becomes_unwritable_while_waiting_keeps_waiting(turns: Turns) -> None:
    reader = FakeReader()
    done: list[int] = []

    async def work() -> None:
        async with turns.turn(reader):
            done.append(1)

    async with turns.turn(FakeReader()):
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        reader.takes.clear()
    async with asyncio.timeout(5), turns.turn(FakeReader()):
        assert not done
    reader.takes.set()
    await task


async def test_cancelled_caller_passes_its_turn_on(turns: Turns) -> None:
    readers = [FakeReader() for _ in range(3)]

    async def work(reader: FakeReader) -> None:
        async with turns.turn(reader):
            pass

    async with turns.turn(FakeReader()):
        tasks = [asyncio.create_task(work(reader)) for reader in readers]
        await asyncio.sleep(0)
        tasks[1].cancel()
    tasks[0].cancel()  # it has just been given the turn
    await asyncio.wait_for(tasks[2], 5)
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(5), turns.turn(readers[0]):
        pass
    with pytest.raises(ZeroDivisionError):
        async with turns.turn(readers[0]):
            raise ZeroDivisionError
    async with asyncio.timeout(5), turns.turn(readers[0]):
        pass


async def test_pieces_of_callers_take_turns_over_all_their_connections(turns: Turns) -> None:
    order: list[str] = []

    async def work(caller: str, name: str) -> None:
        await turns.next_slice(object(), caller)
        order.append(name)

    async with turns.turn(FakeReader()):
        tasks = [asyncio.create_task(work("flood", f"flood {number}")) for number in range(4)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(work("quiet", "quiet")))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["flood 0", "quiet", "flood 1", "flood 2", "flood 3"]


async def test_known_cost_bounds_a_piece_that_other_tasks_interrupt(turns: Turns) -> None:
    """Counted in turns of the loop: without rests there would be a few."""
    others = 0

    async def beside() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0.0005)

    watcher = asyncio.create_task(beside())
    for _ in range(20):
        await turns.next_slice(watcher, cost_s=0.004)
    watcher.cancel()
    assert others >= 30


async def test_a_closed_connection_waits_for_no_turn(turns: Turns) -> None:
    gone, other = object(), object()
    async with turns.turn(FakeReader()):
        waiting = asyncio.create_task(turns.next_slice(gone, "caller"))
        behind = asyncio.create_task(turns.next_slice(other, "caller"))
        await asyncio.sleep(0)
        turns.gone(gone)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert waiting.done()
        assert not behind.done()
    await asyncio.wait_for(behind, 5)


async def test_stop_releases_all_waiting_work(turns: Turns) -> None:
    async with turns.turn(FakeReader()):
        waiting = [asyncio.create_task(turns.next_slice(object(), number % 3)) for number in range(9)]
        await asyncio.sleep(0)
        turns.stop()
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        await asyncio.wait_for(turns.next_slice(object()), 5)


async def test_work_that_begins_after_stop_does_not_wait(turns: Turns) -> None:
    async with turns.turn(FakeReader()):
        turns.stop()
        await asyncio.wait_for(turns.next_slice(object()), 5)


class Clock:
    """The time of turns, as the test sets it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def perf_counter(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(turns_module, "time", made)
    return made


async def has_its_turn_at_once(turns: Turns) -> bool:
    """Whether nothing rests: a rest takes a timer, and no timer rings while the loop goes round a few times."""
    piece = asyncio.create_task(turns.next_slice(object()))
    for _ in range(4):
        await asyncio.sleep(0)
    is_done = piece.done()
    piece.cancel()
    await asyncio.gather(piece, return_exceptions=True)
    return is_done


async def test_a_rest_is_bounded_however_long_a_turn_took(turns: Turns, clock: Clock) -> None:
    async with turns.turn(FakeReader()):
        clock.now_s += 3_600
    assert not await has_its_turn_at_once(turns)
    await asyncio.wait_for(turns.next_slice(object()), 5)


async def test_a_piece_of_a_known_cost_does_not_count_what_others_did_meanwhile(turns: Turns, clock: Clock) -> None:
    await turns.next_slice(object(), cost_s=SLICE_S / 4)
    clock.now_s += 10.0
    await asyncio.sleep(0)
    assert await has_its_turn_at_once(turns)


async def test_work_from_before_a_quiet_while_does_not_count(turns: Turns, clock: Clock) -> None:
    for _ in range(2):
        clock.now_s += 1.0
        async with turns.turn(FakeReader()):
            clock.now_s += 0.75 * SLICE_S
    assert await has_its_turn_at_once(turns)
