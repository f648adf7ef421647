from __future__ import annotations

import time
from typing import Any

import pytest
from tests.proto.derived_batches import compacted_log

from tidelog.errors import CorruptBatchError, RecordError, UsageError
from tidelog.model import ConsumedBatch, Record, RecordColumns, TopicPartition, record_columns
from tidelog.subscriptions import batch_records
from tidelog.subscriptions.cursor import Cursor
from tidelog.subscriptions.deserializers import Decoding
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def next_of(cursor: Cursor) -> Record | None:
    cursor.open()
    return next(cursor.records, None)


def batch_at(base_offset: int, count: int, partition: int = 0) -> ConsumedBatch:
    data = bytearray(encode_batch(columns_of([b"%d" % n for n in range(count)]), now_us=1).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    return ConsumedBatch("t", partition, RecordBatch.parse(data))


def test_positions_follow_delivered_records() -> None:
    cursor = Cursor()
    cursor.begin({P0: 5, P1: 0})
    cursor.load(batch_at(5, 3))
    assert cursor.positions == {P0: 5, P1: 0}
    record = next_of(cursor)
    assert record is not None
    assert (record.offset, cursor.positions[P0], cursor.uncommitted()) == (5, 6, {P0: 6})


def test_used_up_batch_has_no_rest() -> None:
    cursor = Cursor()
    assert next_of(cursor) is None
    cursor.load(batch_at(0, 1))
    assert next_of(cursor) is not None
    assert next_of(cursor) is None
    assert cursor.rest() is None


def test_rest_of_a_batch_is_a_batch() -> None:
    cursor = Cursor()
    cursor.load(batch_at(10, 4))
    next_of(cursor)
    rest = cursor.rest()
    assert rest is not None
    assert (rest.batch.base_offset, len(rest), cursor.positions) == (11, 3, {P0: 14})
    assert next_of(cursor) is None


def test_load_refuses_to_overwrite_undelivered_records() -> None:
    cursor = decoding(skips=True)
    cursor.load(batch_at(0, 5))
    for taken in (0, 3):
        assert len(cursor.take(taken)) == taken
        assert cursor.has_left
        with pytest.raises(UsageError):
            cursor.load(batch_at(5, 1))
    assert [record.value for record in cursor.take(9)] == [4]
    assert not cursor.has_left
    cursor.load(batch_at(5, 1))
    assert [record.offset for record in cursor.take(9)] == [5]


def test_seek_drops_the_rest_of_its_partition_only() -> None:
    cursor = Cursor()
    cursor.load(batch_at(0, 4))
    next_of(cursor)
    cursor.seek(P1, 7)
    assert next_of(cursor) is not None
    cursor.seek(P0, 100)
    assert next_of(cursor) is None
    assert cursor.positions == {P0: 100, P1: 7}


def test_position_moved_during_a_commit_stays_uncommitted() -> None:
    cursor = Cursor()
    for batch in (batch_at(0, 2, partition=0), batch_at(0, 2, partition=1)):
        cursor.load(batch)
        rest = cursor.rest()
        assert rest is not None
        assert rest.batch is batch.batch
    positions = cursor.uncommitted()
    cursor.load(batch_at(2, 2, partition=1))
    assert len(cursor.take(9)) == 2
    cursor.committed(positions)
    assert cursor.uncommitted() == {P1: 4}


def test_position_after_the_last_record_is_the_batch_end() -> None:
    cursor = Cursor()
    batches = [ConsumedBatch("t", 0, RecordBatch.parse(data)) for data in compacted_log()]
    cursor.load(batches[1])
    positions = []
    while next_of(cursor) is not None:
        positions.append(cursor.positions[P0])
    assert positions == [7, 20], "9 is the last record of a batch that reaches to 20"
    cursor.load(batches[2])
    assert next_of(cursor) is None
    assert cursor.positions == cursor.uncommitted() == {P0: 40}, "loading a batch without records delivers it"
    cursor.load(batches[1])
    next_of(cursor)
    rest = cursor.rest()
    assert rest is not None
    assert [record.offset for record in rest] == [9]


# -------------------------------------------------------------------------------------------- decoding


def number_but_not_three(content: bytes) -> int:
    if content == b"3":
        raise ValueError("three")
    return int(content)


def decoding(*, skips: bool = False, to_dead_letter: bool = False) -> Cursor:
    return Cursor(Decoding(number_but_not_three, skips=skips, to_dead_letter=to_dead_letter))


def test_undecodable_record_is_an_error_after_the_records_before_it() -> None:
    cursor = decoding()
    cursor.load(batch_at(10, 6))
    assert [record.value for record in cursor.take(9)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(RecordError, match="t/0: the record at offset 13") as caught:
            cursor.take(9)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, 13)
        assert cursor.positions == cursor.uncommitted() == {P0: 13}
    cursor.seek(P0, 14)
    assert cursor.take(9) == []


def test_undecodable_record_is_skipped_and_counted() -> None:
    cursor = decoding(skips=True)
    cursor.load(batch_at(10, 6))
    taken = [*cursor.take(9), *cursor.take(9)]
    assert [(record.offset, record.value) for record in taken] == [(10, 0), (11, 1), (12, 2), (14, 4), (15, 5)]
    assert (cursor.skipped, cursor.positions) == (1, {P0: 16})
    cursor.load(batch_at(16, 4))
    assert [record.value for record in cursor.take(9)] == [0, 1, 2]
    assert cursor.take(9) == []
    assert (cursor.skipped, cursor.positions) == (2, {P0: 20}), "including the last one of a batch"


def test_undecodable_record_stays_until_it_is_passed() -> None:
    cursor = decoding(to_dead_letter=True)
    cursor.load(batch_at(10, 6))
    assert len(cursor.take(9)) == 3
    assert cursor.take(9) == []
    parked = cursor.undecodable
    assert parked is not None
    assert (parked.record.value, parked.record.offset, str(parked.error)) == (b"3", 13, "three")
    assert (cursor.positions, next_of(cursor)) == ({P0: 13}, None)
    cursor.pass_over(parked)
    assert cursor.positions == {P0: 14}
    assert [record.value for record in cursor.take(9)] == [4, 5]


def test_pass_over_after_unassign_has_no_effect() -> None:
    cursor = decoding(to_dead_letter=True)
    cursor.load(batch_at(3, 4))
    cursor.take(9)
    cursor.take(9)
    parked = cursor.undecodable
    assert parked is not None
    assert cursor.forget([P0]) == {P0: 6}
    cursor.pass_over(parked)
    assert cursor.positions == {}
    assert cursor.take(9) == []


def test_undecodable_key_is_reported() -> None:
    columns = columns_of([b"v", None], keys=[b"1", b"x"])
    data = bytearray(encode_batch(columns, now_us=1).to_bytes())
    stamp_owner(data, base_offset=0, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    cursor = Cursor(Decoding(bytes.decode, int))
    cursor.load(ConsumedBatch("t", 0, RecordBatch.parse(data)))
    (record,) = cursor.take(9)
    assert (record.key, record.value) == (1, "v")
    with pytest.raises(RecordError, match="offset 1"):
        cursor.take(9)
    assert cursor.positions == {P0: 1}


def test_iterator_ends_when_its_partition_is_dropped() -> None:
    cursor = Cursor()
    cursor.load(batch_at(0, 4))
    assert cursor.open()
    running = cursor.records
    assert next(running).offset == 0
    assert cursor.forget([P0]) == {P0: 1}
    assert list(running) == []
    cursor.load(batch_at(0, 4))
    assert cursor.open()
    running = cursor.records
    next(running)
    cursor.seek(P0, 7)
    assert list(running) == []
    assert cursor.positions == {P0: 7}


def test_rest_of_a_paused_partition_is_returned() -> None:
    cursor = Cursor()
    cursor.load(batch_at(5, 4))
    next_of(cursor)
    assert cursor.take_back(P1) is None
    left = cursor.take_back(P0)
    assert left is not None
    assert [record.offset for record in left] == [6, 7, 8]
    assert cursor.take(9) == []
    assert cursor.positions == {P0: 6}


def test_corrupt_body_is_an_error_each_time_and_position_stays() -> None:
    cursor = Cursor()
    cursor.begin({P0: 0})
    cursor.load(ConsumedBatch("t", 0, RecordBatch(batch_at(0, 2).batch.header, bytes(10))))
    for _ in range(2):
        with pytest.raises(CorruptBatchError):
            cursor.take(1)
    assert cursor.positions == {P0: 0}


def test_skipping_does_not_rebuild_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[RecordBatch] = []

    def counted(batch: RecordBatch, values: list[Any]) -> RecordColumns:
        made.append(batch)
        return record_columns(batch, values)

    def never(content: bytes) -> None:
        raise ValueError(content)

    monkeypatch.setattr(batch_records, "record_columns", counted)
    for skips in (True, False):
        made.clear()
        cursor = Cursor(Decoding(never, never, skips=skips, to_dead_letter=not skips))
        cursor.load(batch_at(0, 500))
        while cursor.has_left:
            assert cursor.take(9) == []
            if cursor.undecodable is not None:
                cursor.pass_over(cursor.undecodable)
        assert len(made) == 1
        assert (cursor.skipped, cursor.positions) == (500 * skips, {P0: 500})


def test_skipping_yields_to_other_tasks() -> None:
    def slow(content: bytes) -> None:
        time.sleep(0.002)
        raise ValueError(content)

    cursor = Cursor(Decoding(slow, skips=True))
    cursor.load(batch_at(0, 200))
    assert cursor.take(9) == []
    assert cursor.has_left
    assert 1 < cursor.skipped < 50


def test_columns_stay_aligned_after_undecodable_records() -> None:
    """When a key does not decode, the iterators of value, tag and headers have not advanced."""
    columns = columns_of(
        [b"%d" % number for number in range(6)],
        keys=[b"0", b"x", None, b"3", b"4", b"5"],
        tags=[f"tag{number}" for number in range(6)],
        headers=[[("n", b"%d" % number)] for number in range(6)],
        timestamps_us=list(range(6)),
    )
    data = bytearray(encode_batch(columns, now_us=1).to_bytes())
    stamp_owner(data, base_offset=0, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    cursor = Cursor(Decoding(number_but_not_three, int, skips=True))
    cursor.load(ConsumedBatch("t", 0, RecordBatch.parse(data)))
    taken: list[Record] = []
    while cursor.open() or cursor.has_left:
        cursor.take(9, taken)
    assert [(each.offset, each.key, each.value, each.tag, each.headers, each.timestamp_us) for each in taken] == [
        (n, None if n == 2 else n, n, f"tag{n}", (("n", b"%d" % n),), n) for n in (0, 2, 4, 5)
    ]


def test_offsets_with_gaps_stay_aligned_after_undecodable_records() -> None:
    batch = ConsumedBatch("t", 0, RecordBatch.parse(compacted_log()[1]))
    records = list(batch)
    assert [record.offset for record in records] == [6, 9]
    for bad, handed_out in ((0, [9]), (1, [6])):

        def decode(content: bytes, bad: int = bad) -> bytes:
            if content == records[bad].value:
                raise ValueError(content)
            return content

        cursor = Cursor(Decoding(decode, skips=True))
        cursor.load(batch)
        assert [record.offset for record in [*cursor.take(9), *cursor.take(9)]] == handed_out
        assert (cursor.skipped, cursor.positions, cursor.rest()) == (1, {P0: 20}, None)


def test_skipped_record_is_not_in_hand() -> None:
    for to_dead_letter in (False, True):
        cursor = decoding(skips=not to_dead_letter, to_dead_letter=to_dead_letter)
        cursor.asked()
        cursor.load(batch_at(0, 8))

        def iterate(cursor: Cursor = cursor) -> int | None:
            while True:
                try:
                    record = next_of(cursor)
                except ValueError as error:
                    cursor.failed(error)
                    continue
                if record is None and cursor.undecodable is not None:
                    assert (cursor.in_hand(), cursor.processed()) == ({}, {P0: 3}), "earlier records are processed"
                    cursor.pass_over(cursor.undecodable)
                    assert (cursor.in_hand(), cursor.processed()) == ({}, {P0: 4})
                    continue
                return None if record is None else record.offset

        assert [iterate() for _ in range(4)] == [0, 1, 2, 4]
        assert (cursor.in_hand(), cursor.processed()) == ({P0: 4}, {P0: 4})
        assert iterate() == 5
        assert cursor.processed() == {P0: 5}


def test_polled_records_stay_in_hand_across_skipped_ones() -> None:
    cursor = decoding(skips=True)
    cursor.asked(polls=True)
    cursor.load(batch_at(0, 8))
    assert [record.offset for record in cursor.take(2)] == [0, 1]
    assert [record.offset for record in cursor.take(9)] == [2]
    assert [record.offset for record in cursor.take(9)] == [4, 5, 6, 7]
    assert cursor.processed() == {P0: 0}
    cursor.asked(polls=True)
    assert (cursor.in_hand(), cursor.processed()) == ({}, {P0: 8})


def test_delivered_records_of_a_paused_partition_stay_in_hand() -> None:
    cursor = Cursor()
    cursor.load(batch_at(0, 4))
    for _ in range(2):
        next_of(cursor)
    assert cursor.take_back(P0) is not None
    assert cursor.in_hand() == {P0: 1}
    assert cursor.processed() == {P0: 1}


def test_position_query_during_decoding_loses_no_error() -> None:
    """In the blocking client another thread queries the position, to commit."""

    def meanwhile(content: bytes) -> None:
        assert cursor.processed() == {P0: 0}
        raise ValueError(content)

    for skips in (True, False):
        cursor = Cursor(Decoding(meanwhile, skips=skips))
        cursor.load(batch_at(0, 1))
        if skips:
            assert cursor.take(9) == []
            assert (cursor.skipped, cursor.positions) == (1, {P0: 1})
        else:
            with pytest.raises(RecordError, match="offset 0"):
                cursor.take(9)
            assert cursor.positions == {P0: 0}
