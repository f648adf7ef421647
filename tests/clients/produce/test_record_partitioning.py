"""Where the records of a gathering go, and that receipts find them there."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tidelog.produce import accumulator
from tidelog.produce.accumulator import ANYWHERE, split, whole_for
from tidelog.produce.batches import ColumnsLoad, LooseLoad
from tidelog.produce.open_batch import Gathering, loose_size_bytes
from tidelog.produce.receipts import PendingReceipt
from tidelog_proto.batch.partitioner import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch

KEYLESS = 2
PARTITIONS = 4


def gathering_of(*records: tuple[bytes | None, int | None]) -> Gathering:
    """Return a gathering of (key, partition), each with its number as value, some with a tag or a header."""
    gathering = Gathering(deadline=9.0, timestamped=False)
    for number, (key, partition) in enumerate(records):
        value, tag = b"%d" % number, "t" if number % 3 == 1 else None
        headers = [("h", b"x")] if number % 5 == 2 else None
        size_bytes = loose_size_bytes(value, key, headers, tag)
        gathering.granted_bytes += size_bytes
        assert gathering.add(value, key, headers, tag, partition, None) == number
    return gathering


records = st.tuples(st.none() | st.binary(max_size=5), st.none() | st.none() | st.integers(0, PARTITIONS - 1))


@pytest.mark.parametrize("columns_min", [1, 1_000])
@given(st.lists(records, min_size=1, max_size=50))
@settings(max_examples=60)
def test_each_record_goes_to_its_partition_in_order_and_its_receipt_finds_it(
    columns_min: int, given_records: list[tuple[bytes | None, int | None]]
) -> None:
    assume(any(key is not None or partition is not None for key, partition in given_records))
    gathering = gathering_of(*given_records)
    receipts = [PendingReceipt(gathering, number) for number in range(len(given_records))]
    gathering.fill_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accumulator, "COLUMNS_MIN", columns_min)
        loads = split(gathering, PARTITIONS, lambda: KEYLESS).loads
    stored: dict[int, list[bytes | None]] = {}
    for load in loads:
        assert isinstance(load, ColumnsLoad if columns_min == 1 else LooseLoad)
        encoded = encode_batch(load.columns(), now_us=0)
        parsed = RecordBatch.parse(encoded.header + bytes(encoded.body))
        stored[load.delivery.partition] = parsed.values()
        load.delivery.succeed(100, 0)
        for record in parsed:
            number = int(record.value or b"")
            assert record.key == given_records[number][0]
            assert record.tag == ("t" if number % 3 == 1 else None)
            assert bool(record.headers) == (number % 5 == 2)
    for number, (key, partition) in enumerate(given_records):
        target = partition
        if target is None:
            target = KEYLESS if key is None else partition_for_key(key, PARTITIONS)
        found = gathering.find(number)
        assert found is not None
        assert found[0].partition == target
        assert stored[target][found[1]] == b"%d" % number
        assert receipts[number].done()
    assert all(values == sorted(values, key=lambda value: int(value or b"")) for values in stored.values())
    assert sum(len(values) for values in stored.values()) == len(given_records)


def test_sizes_of_lists_are_those_of_their_records() -> None:
    """A lane goes by them: too small a guess would make a batch that no node takes."""
    gathering = Gathering(deadline=0.0, timestamped=False)
    for partition, length in ((0, 1_000_000), (1, 1), (1, 1)):
        gathering.add(b"x" * length, None, None, None, partition, None)
        gathering.granted_bytes += loose_size_bytes(b"x" * length, None, None, None)
    gathering.fill_up()
    loads = split(gathering, PARTITIONS, lambda: 0).loads
    assert [load.size_bytes for load in loads] == [1_000_096, 194]


@pytest.mark.parametrize(
    ("gathered", "count", "partition"),
    [
        ([(None, None)] * 2, 4, ANYWHERE),
        ([(b"k", None), (None, None)], 1, 0),
        ([(b"k", None)] * 2, 4, None),
        ([(b"k", None)], 4, partition_for_key(b"k", 4)),
        ([(None, 3), (b"k", 3)], 4, 3),
        ([(None, 3), (None, None)], 4, None),
        ([(None, None), (None, 3)], 4, None),
        ([(None, 3), (None, 1)], 4, None),
    ],
)
def test_what_goes_to_one_lane_goes_whole(
    gathered: list[tuple[bytes | None, int | None]], count: int, partition: int | None
) -> None:
    gathering = gathering_of(*gathered)
    gathering.fill_up()
    assert whole_for(gathering, count) == partition
