from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.index import Index, Place, SegmentEnd, load_index, pack_index, parse_index_header

END = SegmentEnd(offset=100, position=9000, digest=5)


def filled() -> Index:
    index = Index()
    for number, time_us in enumerate([5, 3, 9, 9, 1, 12]):
        index.append(
            base_offset=10 * number, position=128 + 64 * 3 * number, length_bytes=129, max_timestamp_us=time_us
        )
    return index


def file_with(content: bytes) -> File:
    disk = SimDisk()
    file = disk.open(Path("/file"), create=True)
    file.pwritev([content], 0)
    return file


def check(index: Index) -> None:
    assert len(index) == 6
    assert [index.slot_of(offset) for offset in (-1, 0, 9, 10, 59, 1000)] == [-1, 0, 0, 1, 5, 5]
    assert [index.slots_below(offset) for offset in (0, 1, 10, 11, 1000)] == [0, 1, 1, 2, 6]
    assert index.place(2) == Place(position=512, length=129)
    # The running maximum: 5 5 9 9 9 12.
    assert [index.slot_of_time(time_us) for time_us in (-9, 5, 6, 9, 10, 12, 13)] == [0, 0, 2, 2, 5, 5, None]
    assert index.slots_before_position(512, 0, 6) == 2
    assert index.slots_before_position(513 + 63, 0, 6) == 3


def test_lookups_in_arrays_and_in_a_mapped_file_agree() -> None:
    check(filled())
    loaded, end = load_index(file_with(pack_index(filled(), nonce=7, end=END)), nonce=7)
    check(loaded)
    assert end == END
    again, _ = load_index(file_with(pack_index(loaded, nonce=7, end=END)), nonce=7)
    check(again)


def test_first_returns_an_independent_copy() -> None:
    loaded, _ = load_index(file_with(pack_index(filled(), nonce=7, end=END)), nonce=7)
    for whole in (filled(), loaded):
        first = whole.first(2)
        first.append(20, 4096, 129, 4)
        assert list(first.offsets) == [0, 10, 20]
        assert first.place(1) == whole.place(1)
        assert list(first.times_us) == [5, 5, 5]
        check(whole)
        assert len(whole.first(0)) == 0


def test_positions_near_the_largest_segment_fit() -> None:
    index = Index()
    index.append(0, 2**32 - 64, 2**24, 0)
    assert index.place(0) == Place(2**32 - 64, 2**24)


def test_every_corrupt_byte_and_truncation_is_detected() -> None:
    raw = pack_index(filled(), nonce=7, end=END)
    for at in range(len(raw)):
        rotten = bytearray(raw)
        rotten[at] ^= 0x20
        with pytest.raises(LayoutError):
            load_index(file_with(bytes(rotten)), nonce=7)
        with pytest.raises(LayoutError):
            load_index(file_with(raw[:at]), nonce=7)


def test_index_of_another_segment_is_invalid() -> None:
    with pytest.raises(LayoutError, match="another segment"):
        parse_index_header(pack_index(filled(), nonce=7, end=END), nonce=8)


def test_an_empty_index() -> None:
    index, end = load_index(file_with(pack_index(Index(), nonce=1, end=END)), nonce=1)
    assert (len(index), end) == (0, END)
    assert index.slot_of_time(0) is None
