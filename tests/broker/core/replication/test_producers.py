"""The producer table: each sequence is stored once, retries get their first offset, snapshots restore the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.replication.producers import PRODUCERS_MAX, PRODUCERS_MIN, ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import SEQUENCE_WINDOW_BATCHES


def header(
    sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, offset: int = 0, crc: int = 0
) -> BatchHeader:
    return BatchHeader(
        flags=4,
        body_length=1,
        uncompressed_length=1,
        record_count=count,
        body_crc=crc,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        last_offset_delta=count - 1,
        base_offset=offset,
    )


def refused(table: ProducerTable, batch: BatchHeader) -> int:
    with pytest.raises(ProtocolError) as caught:
        table.check(batch)
    return caught.value.code


def test_producer_starts_at_zero_and_continues_without_a_gap() -> None:
    table = ProducerTable()
    assert table.check(header(0, 3)) is None
    table.apply(header(0, 3))
    assert table.check(header(3)) is None
    assert refused(table, header(4)) == pb.SEQUENCE_GAP


def test_retry_gets_its_first_offset() -> None:
    table = ProducerTable()
    table.apply(header(0, 3, offset=100))
    table.apply(header(3, 2, offset=150))
    first = table.check(header(0, 3))
    assert first is not None
    assert (first.base_offset, first.end_offset) == (100, 103)
    second = table.check(header(3, 2))
    assert second is not None
    assert second.base_offset == 150


def test_changed_retry_is_refused() -> None:
    table = ProducerTable()
    table.apply(header(0, 3))
    table.apply(header(3, 3))
    for begin, count in [(0, 2), (0, 4), (1, 2), (4, 2), (5, 1)]:
        assert refused(table, header(begin, count)) == pb.PRODUCER_ID_SHARED


OTHER_TIME = 1 << 31
"""Timestamps of records, in µs."""


def test_different_batch_with_the_same_numbers_is_refused() -> None:
    table = ProducerTable()
    first = header(0, 3, offset=100, crc=0xFFFFFFFF)
    table.apply(first)
    table.apply(header(3, crc=1))
    for known in (table, ProducerTable.restore(table.snapshot())):
        assert known.check(first) is not None
        assert refused(known, first._replace(body_crc=0xFFFFFFFE)) == pb.PRODUCER_ID_SHARED
        assert refused(known, first._replace(base_timestamp_us=OTHER_TIME)) == pb.PRODUCER_ID_SHARED
        assert refused(known, first._replace(base_timestamp_us=-1)) == pb.PRODUCER_ID_SHARED
        assert known.check(header(3, crc=1)) is not None
        assert known.check(header(4, crc=2)) is None, "the first batch takes the sequence number"


def test_owner_stamps_and_epochs_do_not_change_the_fingerprint() -> None:
    sent = header(0, 3, crc=77)._replace(base_timestamp_us=-5, max_timestamp_us=OTHER_TIME)
    table = ProducerTable()
    table.apply(sent.stamped(100, 5, 3, 9, 1234))
    assert table.check(sent) is not None


def test_batch_without_a_fingerprint_is_identified_by_its_numbers() -> None:
    table = ProducerTable()
    table.apply(header(0, 2, crc=5)._replace(sequence_span=3))
    begun = header(3, crc=6)._replace(flags=Flags.CONTROL)
    table.apply(begun)
    for known in (table, ProducerTable.restore(table.snapshot())):
        assert known.check(header(0, 3, crc=8)) is not None, "records of the batch were dropped"
        assert known.check(begun._replace(body_crc=7)) is not None
        assert refused(known, header(0, 2, crc=8)) == pb.PRODUCER_ID_SHARED


def test_snapshot_without_fingerprints_identifies_batches_by_numbers() -> None:
    table = ProducerTable()
    table.apply(header(0, 3, crc=1))
    message = pb.ProducerSnapshot.FromString(table.snapshot())
    message.producers[0].window[0].ClearField("fingerprint")
    older = ProducerTable.restore(message.SerializeToString())
    assert older.check(header(0, 3, crc=2)) is not None
    assert older.snapshot() == message.SerializeToString()


def test_retry_older_than_the_window_is_refused() -> None:
    table = ProducerTable()
    for sequence in range(SEQUENCE_WINDOW_BATCHES + 1):
        table.apply(header(sequence, offset=sequence))
    assert refused(table, header(0)) == pb.DUPLICATE_OUT_OF_WINDOW
    assert table.check(header(1)) is not None


def test_unknown_producer_may_only_start_at_zero() -> None:
    assert refused(ProducerTable(), header(5)) == pb.UNKNOWN_PRODUCER


def test_newer_instance_fences_an_older_one() -> None:
    table = ProducerTable()
    table.apply(header(0, 5, epoch=1))
    assert table.check(header(0, epoch=2)) is None
    table.apply(header(0, epoch=2))
    assert refused(table, header(5, epoch=1)) == pb.PRODUCER_FENCED


def test_batches_without_a_producer_id_are_not_remembered() -> None:
    table = ProducerTable()
    table.apply(header(0, producer=0))
    assert table.check(header(0, producer=0)) is None
    assert len(table) == 0


def test_evicted_producer_keeps_only_its_next_sequence() -> None:
    table = ProducerTable(producers_max=2)
    for producer in (1, 2):
        table.apply(header(0, 3, producer=producer, epoch=4))
    table.apply(header(3, producer=1, epoch=4))
    table.apply(header(0, producer=3))
    assert len(table) == 2
    assert table.check(header(4, producer=1, epoch=4)) is None
    assert table.check(header(3, producer=2, epoch=4)) is None, "the sequence continues"
    assert table.check(header(0, producer=2, epoch=5)) is None, "or restarts the sequence"
    assert refused(table, header(0, 3, producer=2, epoch=4)) == pb.DUPLICATE_OUT_OF_WINDOW
    assert refused(table, header(1, producer=2, epoch=4)) == pb.DUPLICATE_OUT_OF_WINDOW
    assert refused(table, header(4, producer=2, epoch=4)) == pb.SEQUENCE_GAP
    assert refused(table, header(1, producer=2, epoch=5)) == pb.SEQUENCE_GAP
    assert refused(table, header(0, producer=2, epoch=3)) == pb.PRODUCER_FENCED
    table.apply(header(3, producer=2, epoch=4, offset=70))
    again = table.check(header(3, producer=2, epoch=4))
    assert again is not None
    assert again.base_offset == 70
    assert refused(table, header(0, producer=1, epoch=4)) == pb.DUPLICATE_OUT_OF_WINDOW, "now that one is evicted"


def test_first_batch_is_not_stored_again_after_ten_thousand_other_producers() -> None:
    table = ProducerTable()
    table.apply(header(0, producer=1))
    for producer in range(2, 2 + PRODUCERS_MAX):
        table.apply(header(0, producer=producer))
    for known in (table, ProducerTable.restore(table.snapshot())):
        assert len(known) == PRODUCERS_MAX
        assert refused(known, header(0, producer=1)) == pb.DUPLICATE_OUT_OF_WINDOW


DAY_US = 24 * 3600 * 1_000_000


def at_time(batch: BatchHeader, day: float) -> BatchHeader:
    return batch._replace(append_timestamp_us=int(day * DAY_US))


def test_producer_idle_for_a_week_of_log_time_is_evicted() -> None:
    table = ProducerTable()
    for producer in (1, 2, 3):
        table.apply(at_time(header(0, 3, producer=producer), 100 + producer))
    table.apply(at_time(header(3, producer=1), 104))
    for producer in range(100, 120):
        table.apply(at_time(header(0, producer=producer), 108))
    table.apply(at_time(header(0, producer=4), 102 + 7))
    assert len(table) == 24
    for known in (table, ProducerTable.restore(table.snapshot())):
        known.apply(at_time(header(1, producer=4), 102 + 7.01))
        assert len(known) == 23
        assert refused(known, header(0, 3, producer=2)) == pb.DUPLICATE_OUT_OF_WINDOW, "as a retry after so long is"
        assert known.check(header(3, producer=2)) is None, "the sequence continues"
        assert known.check(header(0, 3, producer=1)) is not None
        assert known.check(header(0, 3, producer=3)) is not None
        known.apply(at_time(header(2, producer=4), 130))
        assert len(known) == PRODUCERS_MIN, "clocks may jump, so a few producers are always kept"
        assert known.check(header(0, producer=4)) is not None


def test_tables_of_a_node_share_its_limit() -> None:
    budget = ProducerBudget(100)
    busy, quiet = ProducerTable(), ProducerTable()
    for producer in range(1, 61):
        quiet.apply(header(0, producer=producer))
    for table in (busy, quiet):
        table.share(budget)
    for producer in range(1, 61):
        busy.apply(header(0, producer=producer))
        busy.apply(header(1, producer=producer))
    assert (len(busy), len(quiet)) == (40, 60)
    assert refused(busy, header(0, producer=20)) == pb.DUPLICATE_OUT_OF_WINDOW
    assert busy.check(header(0, producer=21)) is not None
    assert busy.check(header(2, producer=20)) is None
    busy.apply(at_time(header(2, producer=60), 8))
    assert len(busy) == PRODUCERS_MIN, "idle producers were evicted to make room"
    for producer in range(100, 200):
        quiet.apply(header(0, producer=producer))
    assert (len(busy), len(quiet)) == (PRODUCERS_MIN, 100 - PRODUCERS_MIN)
    for producer in range(100, 200):
        busy.apply(at_time(header(0, producer=producer), 8))
    assert len(busy) == PRODUCERS_MIN, "so many each may have"


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), max_size=40))
def test_snapshot_restores_the_same_decisions(batches: list[tuple[int, int]]) -> None:
    table = ProducerTable(producers_max=3)
    next_sequence: dict[int, int] = {}
    offset = 0
    for producer, count in batches:
        batch = header(next_sequence.get(producer, 0), count, producer=producer, offset=offset)
        assert judge(table, batch) is None, "no producer with the next sequence is refused"
        table.apply(batch)
        next_sequence[producer] = batch.base_sequence + count
        offset += count
    restored = ProducerTable.restore(table.snapshot(), producers_max=3)
    assert restored.snapshot() == table.snapshot()
    for producer, sequence in next_sequence.items():
        for probe in (header(n, producer=producer) for n in (0, sequence, sequence + 1)):
            assert judge(table, probe) == judge(restored, probe)


def judge(table: ProducerTable, batch: BatchHeader) -> object:
    try:
        return table.check(batch)
    except ProtocolError as error:
        return error.code
