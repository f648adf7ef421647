from __future__ import annotations

import pytest

from tidelog.model import ConsumedBatch, Lag, Partition, PartitionRoute, Record, Topic, TopicRoute
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch


def test_partition_count_is_known_without_partitions() -> None:
    assert Topic("t", b"", (Partition(0, "n", 0), Partition(1, "n", 0))).partition_count == 2
    assert TopicRoute("t", b"", {0: PartitionRoute("n", 0)}).partition_count == 1


def test_consumed_batch_iterates_over_records() -> None:
    columns = columns_of(
        [b"a", None], keys=[None, b"k"], headers=[[("h", b"1")], None], tags=["x", None], timestamps_us=[5, 6]
    )
    data = bytearray(encode_batch(columns, now_us=1).to_bytes())
    stamp_owner(data, base_offset=40, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    batch = ConsumedBatch("t", 3, RecordBatch.parse(data))
    assert len(batch) == 2
    assert list(batch) == [
        Record("t", 3, 40, 5, None, b"a", (("h", b"1"),), "x"),
        Record("t", 3, 41, 6, b"k", None, (), None),
    ]
    assert list(ConsumedBatch("t", 3, batch.batch.slice_from(41))) == list(batch)[1:]


def test_the_old_name_of_the_high_watermark_warns() -> None:
    row = Lag("t", 0, 3, 0, 7, 4, None, None)
    assert row.high_watermark == 7
    with pytest.warns(DeprecationWarning, match=r"Lag\.end_offset is deprecated, use Lag\.high_watermark"):
        assert row.end_offset == 7
