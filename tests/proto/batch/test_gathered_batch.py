"""Values that are encoded where they lie give the bytes that pyarrow makes of a joined copy."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog_proto.batch.gathered_batch import PART_BYTES_MIN, encode_gathered
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.limits import BATCH_RECORDS_MAX


def joined(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    values: Any = pa.concat_arrays([part.column(0) for part in parts])
    return columns_of(values.to_pylist())


def values_of(lengths: list[int]) -> pa.RecordBatch:
    return columns_of([bytes([number % 251]) * length for number, length in enumerate(lengths)])


@settings(max_examples=60)
@given(
    shapes=st.lists(
        st.tuples(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(0, 5), st.integers(1, 40)),
        min_size=1,
        max_size=5,
    )
)
def test_parts_and_slices_of_parts_give_the_bytes_of_a_copy(shapes: list[tuple[list[int], int, int]]) -> None:
    parts = [
        values_of([*lengths, PART_BYTES_MIN, *lengths]).slice(min(start, len(lengths)), len(lengths) + rows)
        for lengths, start, rows in shapes
    ]
    gathered = encode_gathered(parts, now_us=9, producer_id=5, producer_epoch=2, base_sequence=77)
    copied = encode_batch(joined(parts), now_us=9, producer_id=5, producer_epoch=2, base_sequence=77)
    assert gathered is not None
    assert gathered.to_bytes() == copied.to_bytes()
    assert (gathered.length, gathered.record_count) == (copied.length, copied.record_count)
    assert verify_batch(bytearray(gathered.to_bytes())).record_count == copied.record_count


def test_the_values_are_not_copied() -> None:
    columns = values_of([PART_BYTES_MIN])
    gathered = encode_gathered([columns], now_us=0)
    assert gathered is not None
    at = pa.py_buffer(gathered.rest[0]).address
    assert at == columns.column(0).buffers()[2].address  # type: ignore[union-attr]  # there is a data buffer


LARGE = b"x" * PART_BYTES_MIN


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [columns_of([])],
        [columns_of([b"small"])],
        [columns_of([LARGE]), columns_of([b"small"])],
        [columns_of([LARGE, None])],
        [columns_of([LARGE], keys=[b"k"])],
        [columns_of([LARGE, *[b""] * BATCH_RECORDS_MAX])],
        [columns_of([bytes(1 << 23)])] * 3,
    ],
    ids=["nothing", "no rows", "small", "small on average", "a null", "a key", "too many records", "too many bytes"],
)
def test_everything_else_goes_the_general_way(parts: list[pa.RecordBatch]) -> None:
    assert encode_gathered(parts, now_us=0) is None
