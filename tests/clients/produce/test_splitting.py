from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.produce.splitting import group_by_partition, split_rows
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.key_partitions import partition_column, partition_for_key


@given(
    sizes=st.lists(st.integers(0, 300), max_size=60),
    bytes_max=st.integers(1, 2000),
    records_max=st.integers(1, 50),
)
@settings(max_examples=60)
def test_slices_cover_the_input_within_bounds(sizes: list[int], bytes_max: int, records_max: int) -> None:
    columns = columns_of([b"x" * size for size in sizes])
    pieces = list(split_rows(columns, bytes_max=bytes_max, records_max=records_max))
    assert all(0 < piece.num_rows <= records_max for piece in pieces)
    assert all(piece.num_rows == 1 or piece.nbytes <= 4 * bytes_max for piece in pieces)
    assert sum(piece.num_rows for piece in pieces) == len(sizes)
    if pieces:
        assert pa.Table.from_batches(pieces).combine_chunks().to_batches()[0].equals(columns)


def test_a_small_input_is_one_piece_without_a_copy() -> None:
    columns = columns_of([b"a", b"b"])
    assert next(split_rows(columns, bytes_max=1000, records_max=10)) is columns


@given(
    keys=st.lists(st.one_of(st.none(), st.binary(max_size=4)), max_size=100),
    partitions=st.integers(1, 9),
)
@settings(max_examples=60)
def test_rows_keep_order_within_the_partition_of_their_key(keys: list[bytes | None], partitions: int) -> None:
    columns = columns_of([b"%d" % number for number in range(len(keys))], keys=keys)
    keyless = partitions - 1
    grouped = group_by_partition(columns, partition_column(columns.column("key"), partitions), lambda: keyless)
    place_of_keyless = None if set(keys) == {None} else keyless
    order = grouped.order.to_pylist()
    sent: list[int] = []
    for piece in grouped.slices:
        numbers = [int(value or b"") for value in piece.columns.column("value").to_pylist()]
        # Arrow also counts validity bitmaps, and no offsets of an empty column.
        assert abs(piece.columns.nbytes - piece.size_bytes) <= 8 * (len(numbers) + 1)
        assert numbers == sorted(numbers)
        for number in numbers:
            key = keys[number]
            assert piece.partition == (place_of_keyless if key is None else partition_for_key(key, partitions))
        sent += numbers
    assert sent == order
    assert sorted(sent) == list(range(len(keys)))
    assert len({piece.partition for piece in grouped.slices}) == len(grouped.slices)


def test_piece_size_counts_all_columns() -> None:
    columns = columns_of([b"v"] * 4, keys=[b"a", b"b", b"c", b"d"], headers=[[("name", b"x" * 100)]] * 4)
    grouped = group_by_partition(columns, partition_column(columns.column("key"), 2), lambda: 0)
    assert [piece.size_bytes for piece in grouped.slices] == [piece.columns.nbytes for piece in grouped.slices]
    assert sum(piece.size_bytes for piece in grouped.slices) > 400
