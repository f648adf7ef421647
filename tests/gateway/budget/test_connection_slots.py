from __future__ import annotations

import random
from collections import Counter

import pytest

from tidelog_gateway.budget.connection_slots import ConnectionSlot, ConnectionSlots
from tidelog_proto.auth.client_address import counted_address


class Room:
    """Slots whose connections are counted by address."""

    def __init__(self, most: int, address_most: int | None = 0) -> None:
        self.slots = ConnectionSlots(most, address_most)
        self.gone: list[str] = []

    def come(self, address: str, name: str = "") -> ConnectionSlot | None:
        return self.slots.take(address, lambda: self.gone.append(name or address))

    def busy(self, address: str) -> ConnectionSlot:
        slot = self.come(address)
        assert slot is not None
        self.slots.mark_busy(slot)
        return slot


def test_the_longest_idle_connection_of_the_address_with_most_is_replaced() -> None:
    room = Room(5)
    one, two, three = (room.come("10.0.0.1", name) for name in ("1", "2", "3"))
    room.busy("10.0.0.1")
    room.come("10.0.0.2")
    assert one is not None
    assert two is not None
    assert three is not None
    room.slots.mark_idle(one, is_heard=True)
    room.slots.mark_idle(two)
    room.come("10.0.0.3")
    assert room.gone == ["2"]
    room.come("10.0.0.4")
    assert room.gone == ["2", "3"]
    assert len(room.slots) == 5


def test_a_busy_connection_keeps_its_slot() -> None:
    room = Room(2)
    slots = [room.busy("10.0.0.1"), room.busy("10.0.0.2")]
    assert room.come("10.0.0.3") is None
    room.slots.mark_idle(slots[1])
    assert room.come("10.0.0.3") is not None
    assert room.gone == ["10.0.0.2"]
    for _ in range(2):
        room.slots.release(slots[0])
    assert len(room.slots) == 1
    room.slots.mark_idle(slots[0])
    assert room.come("10.0.0.4") is not None
    assert room.gone == ["10.0.0.2"], "a closed connection is not replaced"


@pytest.mark.parametrize(("address_most", "share"), [(None, 6), (0, 8), (3, 3)])
def test_one_address_is_limited_to_its_share(address_most: int | None, share: int) -> None:
    room = Room(8, address_most)
    for number in range(share):
        room.busy(f"2001:db8::{number}")
    assert room.come("2001:db8::ffff") is None, "a /64 is one address"
    assert (room.come("2001:db8:1::1") is None) is (share == 8)


def test_the_address_with_most_idle_connections_is_found_after_any_change() -> None:
    room, chance = Room(40), random.Random(7)
    names = [f"10.0.0.{number}" for number in range(6)]
    slots: list[ConnectionSlot] = []
    idle: set[ConnectionSlot] = set()
    for _ in range(5000):
        waiting = Counter(slot.network for slot in idle)
        is_full, seen = len(room.slots) == 40, len(room.gone)
        came = room.come(chance.choice(names))
        if came is None:
            assert is_full
            assert not idle
        else:
            assert not is_full or waiting[counted_address(room.gone[seen])] == max(waiting.values())
            slots.append(came)
            idle.add(came)
        chosen = chance.choice(slots)
        if chance.random() < 0.6:
            room.slots.mark_busy(chosen)
            idle.discard(chosen)
        elif chance.random() < 0.7:
            room.slots.mark_idle(chosen)
            idle.add(chosen)
        else:
            room.slots.release(chosen)
        slots = [slot for slot in slots if slot.is_taken]
        idle = {slot for slot in idle if slot.is_taken}
        assert len(room.slots) == len(slots)
