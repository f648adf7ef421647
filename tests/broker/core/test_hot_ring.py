"""Hot rings: contiguous, None below their start, and bounded individually and together."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.hot_ring import HotRing, RingBudget, RingEntry


def fill(ring: HotRing, sizes: list[tuple[int, int]], start: int = 0) -> int:
    offset = start
    for records, size in sizes:
        ring.push(RingEntry(offset, offset + records, records, memoryview(bytes(size))))
        offset += records
    return offset


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50)), max_size=30),
    st.integers(0, 200),
    st.integers(0, 160),
    st.integers(1, 100),
)
def test_read_is_contiguous_from_the_batch_of_the_offset(
    sizes: list[tuple[int, int]], bound: int, offset: int, wanted: int
) -> None:
    ring = HotRing(bytes_max=bound, start_offset=0)
    end = fill(ring, sizes)
    assert ring.size_bytes <= bound
    picked = ring.read(offset, wanted)
    if offset < ring.start_offset:
        assert picked is None
    elif offset >= end:
        assert picked == []
    else:
        assert picked
        assert picked[0].base_offset <= offset < picked[0].end_offset
        assert all(a.end_offset == b.base_offset for a, b in pairwise(picked))
        assert len(picked) == 1 or sum(len(entry.data) for entry in picked) <= wanted


def test_empty_ring_starts_at_its_end() -> None:
    ring = HotRing(bytes_max=10, start_offset=40)
    assert ring.start_offset == 40
    assert ring.read(39, 1) is None
    assert ring.read(40, 1) == []


def test_record_limit_stops_a_read() -> None:
    ring = HotRing(bytes_max=1000, start_offset=0)
    fill(ring, [(4, 1), (4, 1), (4, 1)])
    assert [entry.base_offset for entry in ring.read(0, 1000, 5) or []] == [0, 4]


def test_gap_is_an_error() -> None:
    ring = HotRing(bytes_max=10, start_offset=0)
    with pytest.raises(AssertionError):
        ring.push(RingEntry(1, 2, 1, memoryview(b"x")))


def push(budget: RingBudget, ring: HotRing, offset: int, data: memoryview) -> None:
    budget.push(ring, RingEntry(offset, offset + 1, 1, data))


def test_least_recently_fed_ring_is_emptied_first() -> None:
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


def test_batches_below_an_offset_are_dropped_and_uncounted() -> None:
    budget, ring = RingBudget(1000), HotRing(bytes_max=1000, start_offset=0)
    for offset in (0, 2, 4):
        budget.push(ring, RingEntry(offset, offset + 2, 2, memoryview(bytes(10))))
    budget.drop_below(ring, 3)
    assert (ring.start_offset, ring.end_offset, ring.size_bytes, budget.size_bytes) == (2, 6, 20, 20)
    assert ring.read(0, 100) is None
    budget.drop_below(ring, 6)
    assert (ring.start_offset, ring.size_bytes, budget.size_bytes) == (6, 0, 0)
    budget.push(ring, RingEntry(6, 7, 1, memoryview(bytes(10))))
    assert budget.size_bytes == 10


def test_small_part_of_a_large_frame_is_copied() -> None:
    budget = RingBudget(1000)
    ring = HotRing(bytes_max=1000, start_offset=0)
    frame = memoryview(bytearray(900))
    push(budget, ring, 0, frame[:100])
    push(budget, ring, 1, frame[100:850])
    small, large = ring.read(0, 1000) or []
    assert small.data.obj is not frame.obj
    assert large.data.obj is frame.obj
