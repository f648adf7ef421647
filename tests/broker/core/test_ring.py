"""The hot ring: contiguous, bounded, and honest about what it no longer has."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.ring import HotRing, RingEntry


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
def test_a_read_is_contiguous_from_the_batch_of_the_offset(
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


def test_an_empty_ring_starts_at_its_end() -> None:
    ring = HotRing(bytes_max=10, start_offset=40)
    assert ring.start_offset == 40
    assert ring.read(39, 1) is None
    assert ring.read(40, 1) == []


def test_a_record_bound_stops_a_read() -> None:
    ring = HotRing(bytes_max=1000, start_offset=0)
    fill(ring, [(4, 1), (4, 1), (4, 1)])
    assert [entry.base_offset for entry in ring.read(0, 1000, 5) or []] == [0, 4]


def test_a_hole_is_a_bug() -> None:
    ring = HotRing(bytes_max=10, start_offset=0)
    with pytest.raises(AssertionError):
        ring.push(RingEntry(1, 2, 1, memoryview(b"x")))
