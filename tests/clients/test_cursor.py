from __future__ import annotations

from tests.proto.derived_batches import compacted_log

from tidelog.cursor import Cursor
from tidelog.model import ConsumedBatch
from tidelog_proto.batch import RecordBatch, encode_batch
from tidelog_proto.columns import columns_of
from tidelog_proto.header import stamp_owner


def batch_at(base_offset: int, count: int, partition: int = 0) -> ConsumedBatch:
    data = bytearray(encode_batch(columns_of([b"%d" % n for n in range(count)]), now_us=1).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    return ConsumedBatch("t", partition, RecordBatch.parse(data))


def test_positions_follow_the_records_handed_out() -> None:
    cursor = Cursor()
    cursor.begin({0: 5, 1: 0})
    cursor.load(batch_at(5, 3))
    assert cursor.positions == {0: 5, 1: 0}
    record = cursor.next_record()
    assert record is not None
    assert (record.offset, cursor.positions[0], cursor.uncommitted()) == (5, 6, {0: 6})


def test_a_used_up_batch_gives_none() -> None:
    cursor = Cursor()
    assert cursor.next_record() is None
    cursor.load(batch_at(0, 1))
    assert cursor.next_record() is not None
    assert cursor.next_record() is None
    assert cursor.rest() is None


def test_the_rest_of_a_batch_is_a_batch() -> None:
    cursor = Cursor()
    cursor.load(batch_at(10, 4))
    cursor.next_record()
    rest = cursor.rest()
    assert rest is not None
    assert (rest.batch.base_offset, len(rest), cursor.positions) == (11, 3, {0: 14})
    assert cursor.next_record() is None


def test_seek_drops_what_is_left_of_that_partition_only() -> None:
    cursor = Cursor()
    cursor.load(batch_at(0, 4))
    cursor.next_record()
    cursor.seek(1, 7)
    assert cursor.next_record() is not None
    cursor.seek(0, 100)
    assert cursor.next_record() is None
    assert cursor.positions == {0: 100, 1: 7}


def test_what_moved_during_a_commit_stays_uncommitted() -> None:
    cursor = Cursor()
    cursor.whole(batch_at(0, 2, partition=0))
    cursor.whole(batch_at(0, 2, partition=1))
    positions = cursor.uncommitted()
    cursor.whole(batch_at(2, 2, partition=1))
    cursor.committed(positions)
    assert cursor.uncommitted() == {1: 4}


def test_behind_the_last_record_a_position_is_the_end_of_the_batch() -> None:
    cursor = Cursor()
    batches = [ConsumedBatch("t", 0, RecordBatch.parse(data)) for data in compacted_log()]
    cursor.load(batches[1])
    positions = []
    while cursor.next_record() is not None:
        positions.append(cursor.positions[0])
    assert positions == [7, 20], "9 is the last record of a batch that reaches to 20"
    cursor.load(batches[2])
    assert cursor.next_record() is None
    assert cursor.positions == cursor.uncommitted() == {0: 40}, "a batch without records is handed out by loading it"
    cursor.load(batches[1])
    cursor.next_record()
    rest = cursor.rest()
    assert rest is not None
    assert [record.offset for record in rest] == [9]
