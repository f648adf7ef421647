"""Memory for received frames that is used again."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto import reused
from tidelog_proto.limits import KIB, MIB
from tidelog_proto.reused import BLOCKS_BYTES_MAX, BLOCKS_MAX, REUSED_BYTES_MAX, REUSED_BYTES_MIN, ReusedBlocks


def _address(buffer: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def test_memory_is_writable_of_the_size_asked_for_and_aligned() -> None:
    blocks = ReusedBlocks()
    for size_bytes in (0, 1, REUSED_BYTES_MIN - 1, REUSED_BYTES_MIN, MIB + 1, REUSED_BYTES_MAX, REUSED_BYTES_MAX + 1):
        buffer = blocks.take(size_bytes)
        buffer[:] = b"x" * size_bytes
        assert (len(buffer), buffer.format) == (size_bytes, "B")
        if size_bytes >= REUSED_BYTES_MIN:
            assert _address(buffer) % 64 == 0
    assert blocks.size_bytes <= REUSED_BYTES_MIN + MIB + 64 * KIB + REUSED_BYTES_MAX, "small and huge are not kept"


def test_what_nobody_holds_is_used_again_the_newest_first() -> None:
    blocks = ReusedBlocks()
    first, second = blocks.take(MIB), blocks.take(MIB)
    places = [_address(first), _address(second)]
    assert places[0] != places[1]
    del first, second
    third = blocks.take(MIB)
    assert _address(third) == places[1]
    fourth = blocks.take(MIB)
    assert _address(fourth) == places[0]


def test_a_slice_an_arrow_array_and_an_iterator_hold_it() -> None:
    blocks = ReusedBlocks()
    keepers: tuple[Callable[[memoryview], object], ...] = (
        lambda view: view[10:20][1:2],
        lambda view: view.toreadonly(),
        lambda view: pa.py_buffer(view).slice(100, 8),
        lambda view: pa.Array.from_buffers(pa.int64(), 8, [None, pa.py_buffer(view)]).slice(3),
        lambda view: deque([view]),
        lambda view: view.__len__,
        iter,
    )
    for keep in keepers:
        view = blocks.take(MIB)
        place = _address(view)
        kept = keep(view)
        del view
        other = blocks.take(MIB)
        assert _address(other) != place
        del kept
        assert _address(blocks.take(MIB)) == place
        del other


def test_a_block_is_at_most_a_quarter_longer_than_what_it_is_taken_for() -> None:
    blocks = ReusedBlocks()
    place = _address(blocks.take(MIB))
    assert _address(blocks.take(MIB - MIB // 8)) == place
    assert _address(blocks.take(MIB // 2)) != place
    assert _address(blocks.take(MIB + 1)) != place


def test_no_more_is_remembered_than_the_bounds_allow() -> None:
    blocks = ReusedBlocks()
    held = [blocks.take(4 * MIB) for _ in range(20)]
    assert blocks.size_bytes == BLOCKS_BYTES_MAX
    held += [blocks.take(REUSED_BYTES_MIN) for _ in range(2 * BLOCKS_MAX)]
    assert blocks.size_bytes <= BLOCKS_MAX * (REUSED_BYTES_MIN + 64 * KIB)
    assert len({_address(each) for each in held}) == len(held)


def test_each_thread_has_its_own() -> None:
    places: list[int] = []

    def take_twice() -> None:
        places.append(_address(reused.take(MIB)))
        places.append(_address(reused.take(MIB)))

    here = reused.take(MIB)
    place = _address(here)
    del here
    thread = threading.Thread(target=take_twice)
    thread.start()
    thread.join()
    assert places[0] == places[1] != place
    assert _address(reused.take(MIB)) == place


@given(
    st.lists(
        st.tuples(st.integers(REUSED_BYTES_MIN // KIB, 700), st.integers(0, 6), st.booleans()), min_size=1, max_size=60
    )
)
def test_nobody_finds_other_bytes_in_what_he_holds(steps: list[tuple[int, int, bool]]) -> None:
    blocks = ReusedBlocks()
    held: list[tuple[memoryview, int]] = []
    for number, (kib, drop, whole) in enumerate(steps):
        if drop < len(held):
            held.pop(drop)
        view = blocks.take(kib * KIB)
        mark = number % 251 + 1
        view[:] = bytes([mark]) * len(view)
        held.append((view if whole else view[-KIB:], mark))
        del view
        for kept, expected in held:
            assert kept[0] == kept[-1] == expected
