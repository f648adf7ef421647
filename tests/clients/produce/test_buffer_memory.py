"""Memory is taken in turn."""

from __future__ import annotations

import asyncio

import pytest

from tidelog.produce.buffer_memory import Room


async def in_turn(room: Room, size_bytes: int, done: list[int], number: int) -> None:
    await room.enter()
    try:
        await room.wait(size_bytes)
        done.append(number)
    finally:
        room.leave()


async def test_what_is_taken_is_bounded_and_given_back() -> None:
    room = Room(10)
    assert room.take(6)
    assert not room.take(5)
    assert room.take(4)
    room.give_back(10)
    assert room.take(100), "what is larger than all gets all"
    assert not room.take(1)


async def test_nobody_overtakes_who_stands_in_line() -> None:
    room, done = Room(10), list[int]()
    assert room.take(10)
    line = [asyncio.ensure_future(in_turn(room, size, done, number)) for number, size in enumerate((8, 1, 1))]
    await asyncio.sleep(0)
    assert (room.is_awaited, room.taken_bytes) == (True, 10)
    room.give_back(10)
    assert not room.take(1), "who is told of his room has not taken it yet"
    late = asyncio.ensure_future(in_turn(room, 0, done, 3))
    await asyncio.gather(*line, late)
    assert done == [0, 1, 2, 3]
    assert (room.is_awaited, room.taken_bytes) == (False, 10)


async def test_who_gives_up_lets_the_next_one_go() -> None:
    room, done = Room(10), list[int]()
    assert room.take(10)
    line = [asyncio.ensure_future(in_turn(room, 5, done, number)) for number in range(3)]
    await asyncio.sleep(0)
    for impatient in (line[1], line[0]):
        impatient.cancel()
    await asyncio.sleep(0)
    room.give_back(5)
    await line[2]
    assert done == [2]
    assert (room.taken_bytes, room.is_awaited) == (10, False)


async def test_closing_ends_the_waiting() -> None:
    room, done = Room(10), list[int]()
    assert room.take(10)
    line = [asyncio.ensure_future(in_turn(room, 5, done, number)) for number in range(2)]
    await asyncio.sleep(0)
    room.close(ValueError("closed"))
    for waiting in line:
        with pytest.raises(ValueError, match="closed"):
            await waiting
    assert done == []


async def test_who_waited_for_room_takes_it_past_the_line() -> None:
    room, done = Room(10), list[int]()
    assert room.take(10)
    first = asyncio.ensure_future(room.ready(5, claim=True))
    late = asyncio.ensure_future(in_turn(room, 5, done, 1))
    await asyncio.sleep(0)
    room.give_back(10)
    await first
    assert not room.take(5), "others stand in line"
    assert room.take(5, claiming=True)
    assert not room.take(1, claiming=True), "a claim is for one"
    await late
    assert (done, room.is_awaited) == ([1], False)


async def test_a_claim_that_nobody_uses_lapses() -> None:
    room, done = Room(10), list[int]()
    await room.ready(5, claim=True)
    assert room.is_awaited
    async with asyncio.timeout(5):
        await in_turn(room, 5, done, 1)
    assert (done, room.is_awaited) == ([1], False)
    assert room.take(1), "nobody waits any more"
    await room.ready(4, claim=False)
    assert (room.taken_bytes, room.kept_bytes, room.is_awaited) == (10, 4, False), "who is elsewhere has it at once"
    room.let_go(4)
    assert (room.taken_bytes, room.kept_bytes) == (6, 0)


async def test_closing_ends_a_claim() -> None:
    room, done = Room(10), list[int]()
    await room.ready(5, claim=True)
    waiting = asyncio.ensure_future(in_turn(room, 5, done, 1))
    room.close(ValueError("closed"))
    with pytest.raises(ValueError, match="closed"):
        await waiting
    assert not room.is_awaited
