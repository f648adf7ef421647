"""The epoch of a position: that of the record before it, if it was read or reported."""

from __future__ import annotations

import pytest

from tidelog.cluster import read_epochs
from tidelog.cluster.known_ends import KnownEnds
from tidelog.cluster.read_epochs import ReadEpochs, ReceivedEpochs
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit
from tidelog.subscriptions.subscription import Prefetched
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.batch.record_batch import RecordBatch

ID = b"1" * 16
WHERE = TopicPartition("t", 0)


class NoLender:
    def give_back(self, cost: Credit) -> None:
        raise AssertionError(cost)


def batch(base_offset: int, end_offset: int, epoch: int, *, records: int = 1) -> RecordBatch:
    header = BatchHeader(
        flags=0,
        body_length=0,
        uncompressed_length=0,
        record_count=records,
        body_crc=0,
        last_offset_delta=end_offset - base_offset - 1,
        base_offset=base_offset,
        epoch=epoch,
    )
    return RecordBatch(header, b"")


def test_position_has_epoch_of_the_preceding_record() -> None:
    epochs = ReadEpochs()
    epochs.read(ID, 0, [batch(10, 20, 2), batch(20, 30, 2), batch(30, 40, 5)])
    found = [epochs.at(ID, 0, offset) for offset in (10, 11, 30, 31, 40, 41)]
    assert found == [None, 2, 2, 5, 5, None], "the record before the first one was not read"
    assert epochs.at(ID, 1, 15) is None
    epochs.read(ID, 0, [batch(50, 60, 5)])
    assert epochs.at(ID, 0, 45) == 5, "a gap within an epoch belongs to it"


def test_last_read_epoch_counts_after_truncation() -> None:
    epochs = ReadEpochs()
    epochs.read(ID, 0, [batch(0, 100, 2)])
    epochs.read(ID, 0, [batch(50, 70, 3)])
    assert [epochs.at(ID, 0, offset) for offset in (50, 60, 70, 80)] == [2, 3, 3, 2]
    epochs.read(ID, 0, [batch(0, 100, 2)])
    assert epochs.at(ID, 0, 60) == 2


def test_filtered_range_has_no_known_epoch() -> None:
    epochs = ReadEpochs()
    epochs.read(ID, 0, [batch(0, 10, 0), batch(10, 20, 0, records=0)])
    assert (epochs.at(ID, 0, 10), epochs.at(ID, 0, 20)) == (0, None)
    epochs.read(ID, 0, [batch(20, 30, 4, records=0)])
    assert epochs.at(ID, 0, 30) == 4, "control batches have no records either"


def test_committed_epoch_applies_to_its_position_only() -> None:
    epochs = ReadEpochs()
    epochs.note_committed(ID, 0, offset=7, epoch=3)
    assert [epochs.at(ID, 0, offset) for offset in (6, 7, 8)] == [None, 3, None]
    epochs.read(ID, 0, [batch(0, 10, 1)])
    assert epochs.at(ID, 0, 7) == 1, "records read here take precedence"
    assert epochs.committed_epoch(ID, 0, 7) == 3


def test_remembered_epochs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_epochs, "PARTITIONS_MAX", 3)
    epochs = ReadEpochs()
    for partition in range(9):
        epochs.read(ID, partition, [batch(0, 1, 1)])
        epochs.note_committed(ID, partition, offset=5, epoch=1)
    assert [partition for partition in range(9) if epochs.at(ID, partition, 1) is not None] == [6, 7, 8]
    assert [partition for partition in range(9) if epochs.at(ID, partition, 5) is not None] == [6, 7, 8]
    for epoch in range(9):
        epochs.read(ID, 0, [batch(epoch, epoch + 1, epoch)])
    assert [epochs.at(ID, 0, epoch + 1) for epoch in range(9)] == [None] * 6 + [6, 7, 8]


def test_last_received_record_sets_epoch_and_end() -> None:
    ends, epochs = KnownEnds(), ReadEpochs()
    epochs.note_committed(ID, 0, offset=10, epoch=2)
    here = ReceivedEpochs(ends, epochs)
    here.begin(WHERE, ID, 11)
    assert here.at(WHERE) is None
    here.begin(WHERE, ID, 10)
    assert here.at(WHERE) == 2
    here.arrived(ID, [Prefetched(WHERE, each, NoLender(), None) for each in (batch(10, 20, 2), batch(20, 30, 3))])
    assert (here.at(WHERE), epochs.at(ID, 0, 15), ends.newest(ID, 0)) == (3, 2, 30)
    here.arrived(ID, [Prefetched(WHERE, batch(30, 40, 0, records=0), NoLender(), None)])
    assert (here.at(WHERE), ends.newest(ID, 0), ends.known(ID, 0, epoch=3)) == (None, 40, 40)
    here.arrived(ID, [Prefetched(WHERE, batch(40, 50, 3), NoLender(), None)])
    here.forget(WHERE)
    assert here.at(WHERE) is None


def test_batches_that_pass_one_by_one_extend_the_range_of_their_epoch() -> None:
    ends, epochs = KnownEnds(), ReadEpochs()
    here = ReceivedEpochs(ends, epochs)
    for one in (batch(10, 20, 2), batch(20, 30, 2), batch(12, 15, 2)):
        here.passed(WHERE, ID, one)
    assert [epochs.at(ID, 0, offset) for offset in (10, 11, 20, 30, 31)] == [None, 2, 2, 2, None]
    assert (here.at(WHERE), ends.newest(ID, 0)) == (2, 30)
    here.passed(WHERE, ID, batch(25, 40, 3))
    assert [epochs.at(ID, 0, offset) for offset in (25, 26, 40)] == [2, 3, 3], "the log was truncated"
    here.passed(WHERE, ID, batch(5, 8, 3))
    assert epochs.at(ID, 0, 7) == 3
    here.passed(WHERE, ID, batch(40, 50, 0, records=0))
    assert (here.at(WHERE), epochs.at(ID, 0, 50), ends.newest(ID, 0)) == (None, None, 50), "a filter left a gap"


def test_a_part_of_a_batch_was_read_from_its_start_only() -> None:
    epochs = ReadEpochs()
    ReceivedEpochs(KnownEnds(), epochs).passed(WHERE, ID, batch(10, 20, 2, records=10).slice_from(15))
    assert [epochs.at(ID, 0, offset) for offset in (15, 16, 20)] == [None, 2, 2]
