"""Splitting of an open batch by partition, and the receipts of its records."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidelog.produce import accumulator
from tidelog.produce.accumulator import ANY_PARTITION, common_partition, split_by_partition
from tidelog.produce.batches import ColumnChunk, ListChunk
from tidelog.produce.open_batch import OpenBatch, record_size_bytes
from tidelog.produce.receipts import PendingReceipt
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch

KEYLESS = 2
PARTITIONS = 4


def batch_of(*records: tuple[bytes | None, int | None]) -> OpenBatch:
    """Return an open batch of numbers with these keys and partitions; some have a tag or a header."""
    batch = OpenBatch(deadline=9.0, timestamped=False)
    for number, (key, partition) in enumerate(records):
        value, tag = b"%d" % number, "t" if number % 3 == 1 else None
        headers = [("h", b"x")] if number % 5 == 2 else None
        size_bytes = record_size_bytes(value, key, headers, tag)
        batch.reserved_bytes += size_bytes
        assert batch.add(value, key, headers, tag, partition, None) == number
    return batch


records = st.tuples(st.none() | st.binary(max_size=5), st.none() | st.none() | st.integers(0, PARTITIONS - 1))


@pytest.mark.parametrize(
    ("columns_min", "records_per_chunk_min", "kind"),
    [(1, 0, ColumnChunk), (1, 1_000, ListChunk), (1_000, 0, ListChunk)],
)
@given(st.lists(records, min_size=1, max_size=50))
@settings(max_examples=60)
def test_records_keep_order_and_receipts_match_partitions(
    columns_min: int,
    records_per_chunk_min: int,
    kind: type[ColumnChunk | ListChunk],
    given_records: list[tuple[bytes | None, int | None]],
) -> None:
    assume(any(key is not None or partition is not None for key, partition in given_records))
    batch = batch_of(*given_records)
    receipts = [PendingReceipt(batch, number) for number in range(len(given_records))]
    batch.pad_columns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulator, "COLUMNS_MIN", columns_min)
        patch.setattr(accumulator, "RECORDS_PER_CHUNK_MIN", records_per_chunk_min)
        chunks = split_by_partition(batch, PARTITIONS, lambda: KEYLESS).chunks
    stored: dict[int, list[bytes | None]] = {}
    for chunk in chunks:
        assert isinstance(chunk, kind)
        encoded = encode_batch(chunk.columns if isinstance(chunk, ColumnChunk) else chunk.to_columns(), now_us=0)
        parsed = RecordBatch.parse(encoded.header + bytes(encoded.body))
        stored[chunk.partition] = parsed.values()
        chunk.succeed(100, 0)
        for record in parsed:
            number = int(record.value or b"")
            assert record.key == given_records[number][0]
            assert record.tag == ("t" if number % 3 == 1 else None)
            assert bool(record.headers) == (number % 5 == 2)
    for number, (key, partition) in enumerate(given_records):
        target = partition
        if target is None:
            target = KEYLESS if key is None else partition_for_key(key, PARTITIONS)
        found = batch.find(number)
        assert found is not None
        assert found[0].partition == target
        assert stored[target][found[1]] == b"%d" % number
        assert receipts[number].done()
    assert all(values == sorted(values, key=lambda value: int(value or b"")) for values in stored.values())
    assert sum(len(values) for values in stored.values()) == len(given_records)


def test_sizes_of_lists_are_those_of_their_records() -> None:
    """Queues limit batches by these sizes: with too small an estimate a batch would exceed the node's limit."""
    batch = OpenBatch(deadline=0.0, timestamped=False)
    for partition, length in ((0, 1_000_000), (1, 1), (1, 1)):
        batch.add(b"x" * length, None, None, None, partition, None)
        batch.reserved_bytes += record_size_bytes(b"x" * length, None, None, None)
    batch.pad_columns()
    chunks = split_by_partition(batch, PARTITIONS, lambda: 0).chunks
    assert [chunk.size_bytes for chunk in chunks] == [1_000_096, 194]


@pytest.mark.parametrize(
    ("records", "count", "partition"),
    [
        ([(None, None)] * 2, 4, ANY_PARTITION),
        ([(b"k", None), (None, None)], 1, 0),
        ([(b"k", None)] * 2, 4, None),
        ([(b"k", None)], 4, partition_for_key(b"k", 4)),
        ([(None, 3), (b"k", 3)], 4, 3),
        ([(None, 3), (None, None)], 4, None),
        ([(None, None), (None, 3)], 4, None),
        ([(None, 3), (None, 1)], 4, None),
    ],
)
def test_records_of_one_partition_are_not_split(
    records: list[tuple[bytes | None, int | None]], count: int, partition: int | None
) -> None:
    batch = batch_of(*records)
    batch.pad_columns()
    assert common_partition(batch, count) == partition
