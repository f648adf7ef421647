from __future__ import annotations

import asyncio
import random

import pytest

from tidelog_proto.flow.fair_slots import FairSlots, FullError, SlotBounds, SlotQueue


def queue_of(bounds: SlotBounds, *items: str) -> SlotQueue[str]:
    """Return a queue with items whose first letter is their key."""
    queue: SlotQueue[str] = SlotQueue(bounds)
    for item in items:
        if not queue.take(item[0]):
            queue.wait(item[0], item)
    return queue


def granted(queue: SlotQueue[str], key: str) -> str | None:
    """Return a slot of a key, and the item that gets it."""
    queue.give_back(key)
    found = queue.next()
    return None if found is None else found[1]


def test_keys_take_turns_and_each_keeps_its_order() -> None:
    queue = queue_of(SlotBounds(), "x", "a1", "a2", "a3", "b1", "c1")
    order = [granted(queue, key) for key in "xabcaa"]
    assert order == ["a1", "b1", "c1", "a2", "a3", None]
    assert queue.waiting == 0


def test_key_at_its_limit_of_slots_delays_no_other() -> None:
    queue = queue_of(SlotBounds(3, key_slots=2), "a1", "a2", "a3", "a4")
    assert queue.take("b"), "a free slot is not granted to a key that has its share"
    assert queue.next() is None
    queue.wait("b", "b2")
    assert granted(queue, "a") == "a3", "its first turn was due before"
    assert granted(queue, "a") == "b2"
    assert granted(queue, "b") == "a4"
    assert queue.next() is None


def test_full_key_refuses_and_full_queue_replaces_the_newest_of_the_largest_key() -> None:
    queue = queue_of(SlotBounds(waiting_max=4, key_waiting_max=3), "x", "a1", "a2", "a3")
    with pytest.raises(FullError):
        queue.wait("a", "a4")
    assert queue.wait("b", "b1") is None
    assert queue.wait("b", "b2") == "a3"
    with pytest.raises(FullError):
        queue.wait("b", "b3")
    assert [item for _, item in queue.items()] == ["a1", "a2", "b1", "b2"]


def test_full_queue_refuses_the_new_item_of_a_key_with_one_item_less_than_the_largest() -> None:
    queue = queue_of(SlotBounds(waiting_max=3), "x", "a1", "a2", "b1")
    with pytest.raises(FullError):
        queue.wait("b", "b2")  # in place of a2 it would make b the largest key
    assert [item for _, item in queue.items()] == ["a1", "a2", "b1"]
    assert queue.wait("c", "c1") == "a2"


def test_removed_items_get_no_turn() -> None:
    queue = queue_of(SlotBounds(), "x", "a1", "a2", "b1")
    queue.remove("a", "a1")
    queue.remove("a", "a1")
    queue.remove("b", "b1")
    assert (granted(queue, "x"), queue.waiting) == ("a2", 0)


def test_nothing_is_granted_during_a_pause() -> None:
    queue = queue_of(SlotBounds(), "x", "a1")
    queue.is_paused = True
    assert granted(queue, "x") is None
    assert not queue.take("b")
    queue.is_paused = False
    assert queue.next() == ("a", "a1")


def test_more_slots_cannot_be_returned_than_taken() -> None:
    with pytest.raises(AssertionError):
        SlotQueue[str](SlotBounds()).give_back("a")


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_whatever_happens(seed: int) -> None:
    draw = random.Random(seed)
    bounds = SlotBounds(draw.randint(1, 4), draw.randint(1, 3), waiting_max=draw.randint(1, 8), key_waiting_max=4)
    queue: SlotQueue[int] = SlotQueue(bounds)
    held: list[str] = []
    waiting: dict[int, str] = {}
    for number in range(500):
        key = draw.choice("abc")
        match draw.randrange(4):
            case 0 if held:
                held.remove(key := draw.choice(held))
                queue.give_back(key)
                while (found := queue.next()) is not None:
                    assert waiting.pop(found[1]) == found[0]
                    held.append(str(found[0]))
            case 1 if waiting:
                item = draw.choice(list(waiting))
                queue.remove(waiting.pop(item), item)
            case _ if queue.take(key):
                held.append(key)
            case _:
                try:
                    refused = queue.wait(key, number)
                except FullError:
                    continue
                waiting[number] = key
                if refused is not None:
                    del waiting[refused]
        assert len(held) <= bounds.slots
        assert queue.waiting == len(waiting) <= bounds.waiting_max
        assert all(held.count(each) <= bounds.key_slots for each in "abc")
        has_room = len(held) < bounds.slots
        assert not any(has_room and held.count(each) < bounds.key_slots for each in waiting.values())
    assert sorted((item, str(key)) for key, item in queue.items()) == sorted(waiting.items())


async def test_cancelled_coroutine_passes_its_slot_on() -> None:
    slots = FairSlots(SlotBounds())
    assert slots.take_now("a")
    first, second, third = (asyncio.create_task(slots.take("a")) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    slots.give_back("a")
    first.cancel()  # it has just been given the slot
    assert await asyncio.wait_for(third, 5)
    assert not slots.take_now("a")


async def test_coroutine_cancelled_with_its_turn_due_is_skipped() -> None:
    slots = FairSlots(SlotBounds())
    assert slots.take_now("a")
    first, second = (asyncio.create_task(slots.take("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    slots.give_back("a")
    assert await asyncio.wait_for(second, 5)
    assert first.cancelled()


async def test_released_coroutines_continue_without_a_slot() -> None:
    slots = FairSlots(SlotBounds())
    assert slots.take_now("a")
    owner = object()
    mine, other = asyncio.create_task(slots.take("a", owner)), asyncio.create_task(slots.take("a", object()))
    await asyncio.sleep(0)
    slots.release(owner)
    assert not await asyncio.wait_for(mine, 5)
    assert not other.done()
    slots.release()
    assert not await asyncio.wait_for(other, 5)


async def test_newest_of_the_largest_key_is_refused_for_another_key() -> None:
    slots = FairSlots(SlotBounds(waiting_max=2))
    assert slots.take_now("a")
    older, newer = (asyncio.create_task(slots.take("a")) for _ in range(2))
    await asyncio.sleep(0)
    other = asyncio.create_task(slots.take("b"))
    with pytest.raises(FullError):
        await asyncio.wait_for(newer, 5)
    slots.give_back("a")
    assert await asyncio.wait_for(older, 5)
    slots.give_back("a")
    assert await asyncio.wait_for(other, 5)
