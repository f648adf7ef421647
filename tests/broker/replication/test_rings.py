"""All hot rings of a node together stay within their bound, and hold no more memory than they count."""

from __future__ import annotations

from tidelog_broker.core.ring import HotRing, RingEntry
from tidelog_broker.replication.rings import RingBudget


def push(budget: RingBudget, ring: HotRing, offset: int, data: memoryview) -> None:
    budget.push(ring, RingEntry(offset, offset + 1, 1, data))


def test_the_ring_fed_least_recently_gives_way_first() -> None:
    budget = RingBudget(100)
    old, new = HotRing(bytes_max=100, start_offset=0), HotRing(bytes_max=100, start_offset=0)
    push(budget, old, 0, memoryview(bytes(60)))
    push(budget, new, 0, memoryview(bytes(60)))
    assert (old.size_bytes, new.size_bytes, budget.size_bytes) == (0, 60, 60)
    assert old.read(0, 1) is None
    push(budget, old, 1, memoryview(bytes(30)))
    assert budget.size_bytes == 90
    budget.forget(new)
    assert budget.size_bytes == 30


def test_a_small_part_of_a_large_frame_is_copied_out_of_it() -> None:
    budget = RingBudget(1000)
    ring = HotRing(bytes_max=1000, start_offset=0)
    frame = memoryview(bytearray(900))
    push(budget, ring, 0, frame[:100])
    push(budget, ring, 1, frame[100:850])
    small, large = ring.read(0, 1000) or []
    assert small.data.obj is not frame.obj
    assert large.data.obj is frame.obj
