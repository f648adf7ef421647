"""The number of bytes that a fetch asks for follows the sizes of the partition's last reads."""

from __future__ import annotations

from tidelog_gateway.coalescing.read_sizes import PARTITIONS_MAX, ReadSizes
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.limits import MIB


def batch(records: int, value_bytes: int) -> RecordBatch:
    return RecordBatch.parse(encode_batch(columns_of([b"x" * value_bytes] * records), now_us=1).to_bytes())


def test_an_unknown_partition_has_the_default() -> None:
    sizes = ReadSizes()
    sizes.note("t", 0, [batch(10, 100)])
    assert sizes.likely("t", 1, 100, MIB) == MIB
    assert sizes.likely("other", 0, 100, MIB) == MIB


def test_the_estimate_covers_the_records_from_any_position_in_a_batch() -> None:
    sizes, read = ReadSizes(), [batch(10, 100), batch(10, 100)]
    sizes.note("t", 0, read)
    length = read[0].header.length
    assert 2 * length <= sizes.likely("t", 0, 10, MIB) < 2 * length + 10
    assert sizes.likely("t", 0, 10, 1000) == 1000, "the default is also the maximum"


def test_an_estimate_that_is_too_low_is_raised_at_once() -> None:
    sizes = ReadSizes()
    sizes.note("t", 0, [batch(10, 100)])
    sizes.note("t", 0, [batch(10, 10_000)])
    assert sizes.likely("t", 0, 10, MIB) >= 2 * batch(10, 10_000).header.length


def test_an_estimate_is_lowered_gradually_and_only_if_it_is_twice_too_high() -> None:
    sizes, small = ReadSizes(), [batch(10, 1000)]
    sizes.note("t", 0, [batch(10, 10_000)])
    high = sizes.likely("t", 0, 10, MIB)
    sizes.note("t", 0, [batch(10, 6000)])
    assert sizes.likely("t", 0, 10, MIB) == high
    sizes.note("t", 0, small)
    assert 0.8 * high < sizes.likely("t", 0, 10, MIB) < high
    for _ in range(40):
        sizes.note("t", 0, small)
    assert sizes.likely("t", 0, 10, MIB) < 4 * small[0].header.length + 10


def test_a_read_without_records_changes_nothing() -> None:
    sizes = ReadSizes()
    sizes.note("t", 0, [])
    assert not len(sizes)


def test_the_number_of_estimates_is_bounded() -> None:
    sizes = ReadSizes()
    for partition in range(PARTITIONS_MAX + 5):
        sizes.note("t", partition, [batch(1, 1)])
    assert len(sizes) == PARTITIONS_MAX
    assert sizes.likely("t", 0, 1, MIB) == MIB
    assert sizes.likely("t", PARTITIONS_MAX, 1, MIB) < MIB
