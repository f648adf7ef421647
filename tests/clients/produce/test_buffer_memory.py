"""The buffer memory is reserved in the order of calls."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.produce.buffer_memory import BufferMemory


async def has_turn(memory: BufferMemory, size_bytes: int, done: list[int], number: int) -> None:
    await memory.acquire_turn()
    try:
        await memory.reserve(size_bytes)
        done.append(number)
    finally:
        memory.release_turn()


async def test_reserved_memory_is_bounded_and_released() -> None:
    memory = BufferMemory(10)
    assert memory.try_reserve(6)
    assert not memory.try_reserve(5)
    assert memory.try_reserve(4)
    memory.release(10)
    assert memory.try_reserve(100), "a larger record gets the whole buffer"
    assert not memory.try_reserve(1)


async def test_waiting_calls_are_served_in_order() -> None:
    memory, done = BufferMemory(10), list[int]()
    assert memory.try_reserve(10)
    line = [asyncio.ensure_future(has_turn(memory, size, done, number)) for number, size in enumerate((8, 1, 1))]
    await asyncio.sleep(0)
    assert (memory.has_waiters, memory.used_bytes) == (True, 10)
    memory.release(10)
    assert not memory.try_reserve(1), "the first waiter has not reserved its memory yet"
    late = asyncio.ensure_future(has_turn(memory, 0, done, 3))
    await asyncio.gather(*line, late)
    assert done == [0, 1, 2, 3]
    assert (memory.has_waiters, memory.used_bytes) == (False, 10)


async def test_cancelled_wait_passes_the_turn_on() -> None:
    memory, done = BufferMemory(10), list[int]()
    assert memory.try_reserve(10)
    line = [asyncio.ensure_future(has_turn(memory, 5, done, number)) for number in range(3)]
    await asyncio.sleep(0)
    for impatient in (line[1], line[0]):
        impatient.cancel()
    await asyncio.sleep(0)
    memory.release(5)
    await line[2]
    assert done == [2]
    assert (memory.used_bytes, memory.has_waiters) == (10, False)


async def test_close_ends_waiting_calls() -> None:
    memory, done = BufferMemory(10), list[int]()
    assert memory.try_reserve(10)
    line = [asyncio.ensure_future(has_turn(memory, 5, done, number)) for number in range(2)]
    await asyncio.sleep(0)
    memory.close(ValueError("closed"))
    for waiting in line:
        with pytest.raises(ValueError, match="closed"):
            await waiting
    assert done == []


async def test_claim_reserves_memory_ahead_of_the_queue() -> None:
    memory, done = BufferMemory(10), list[int]()
    assert memory.try_reserve(10)
    first = asyncio.ensure_future(memory.wait_ready(5, claim=True))
    late = asyncio.ensure_future(has_turn(memory, 5, done, 1))
    await asyncio.sleep(0)
    memory.release(10)
    await first
    assert not memory.try_reserve(5), "other calls wait"
    assert memory.try_reserve(5, claiming=True)
    assert not memory.try_reserve(1, claiming=True), "a claim is used once"
    await late
    assert (done, memory.has_waiters) == ([1], False)


async def test_unused_claim_expires() -> None:
    memory, done = BufferMemory(10), list[int]()
    await memory.wait_ready(5, claim=True)
    assert memory.has_waiters
    async with asyncio.timeout(5):
        await has_turn(memory, 5, done, 1)
    assert (done, memory.has_waiters) == ([1], False)
    assert memory.try_reserve(1), "no call waits any more"
    await memory.wait_ready(4, claim=False)
    assert (memory.used_bytes, memory.reservation_bytes, memory.has_waiters) == (10, 4, False), (
        "without a claim the memory is reserved at once"
    )
    memory.release_reservation(4)
    assert (memory.used_bytes, memory.reservation_bytes) == (6, 0)


async def test_close_ends_a_claim() -> None:
    memory, done = BufferMemory(10), list[int]()
    await memory.wait_ready(5, claim=True)
    waiting = asyncio.ensure_future(has_turn(memory, 5, done, 1))
    memory.close(ValueError("closed"))
    with pytest.raises(ValueError, match="closed"):
        await waiting
    assert not memory.has_waiters
