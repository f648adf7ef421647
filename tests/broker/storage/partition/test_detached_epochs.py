"""Complete copies beside a log that never reaches them: each contiguous run of them is read as a log."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.decided import copy, decided, fill
from tests.broker.storage.logs import new_disk, open_partition

from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_broker.storage.partition.detached_epochs import RunReaders
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import MIB

HISTORY = decided(Random(5), epochs=6, batches_min=3, batches_max=5)


def with_gaps() -> PartitionLog:
    """A log of epoch 5, with copies of the epochs 0, 1 and 3 beside it."""
    log = open_partition(new_disk())
    log.start_epoch(5, HISTORY[5].start_offset)
    copy(log, HISTORY[5].batches)
    for epoch in (3, 1, 0):
        assert not fill(log, HISTORY[epoch])
    return log


def bounds(log: PartitionLog) -> list[tuple[int, int]]:
    return [(run.start_offset, run.end_offset) for run in log.detached.runs]


def read(run: RunReaders, offset: int) -> FoundBatches:
    return run.reader.read(offset, MIB, limit_offset=run.end_offset)


def test_each_contiguous_run_of_copies_is_read_to_its_end() -> None:
    log = with_gaps()
    assert bounds(log) == [(0, HISTORY[1].end_offset), (HISTORY[3].start_offset, HISTORY[3].end_offset)]
    first = log.detached.run_at(0)
    assert first is not None
    found = read(first, 0)
    assert found.next_offset == HISTORY[1].end_offset
    assert b"".join(found.batches) == b"".join(HISTORY[0].batches + HISTORY[1].batches)
    second = log.detached.run_at(HISTORY[3].start_offset)
    assert second is not None
    assert b"".join(read(second, HISTORY[3].start_offset).batches) == b"".join(HISTORY[3].batches)
    for offset in (HISTORY[1].end_offset, HISTORY[3].end_offset, HISTORY[5].start_offset):
        assert log.detached.run_at(offset) is None
    with pytest.raises(NotHeldError):
        log.reader.read(0, MIB, limit_offset=log.end_offset)


def test_other_nodes_are_served_from_a_copy_at_each_batch() -> None:
    log = with_gaps()
    for epoch in (1, 3):
        header = unpack_header(HISTORY[epoch].batches[1])
        assert log.reader.digest_at(epoch, header.end_offset) == header.digest
        assert log.reader.batch_start(epoch, header.base_offset) == header.base_offset
        held = log.copy_of(epoch)
        assert held is not None
        assert held.end_offset == HISTORY[epoch].end_offset
    assert log.reader.digest_at(2, HISTORY[2].end_offset) is None
    assert log.copy_of(2) is None


def test_runs_end_when_copies_join_the_log_or_are_removed() -> None:
    log = with_gaps()
    log.copies.abandon_copy(3)
    assert bounds(log) == [(0, HISTORY[1].end_offset)]
    for epoch in (4, 3):
        assert fill(log, HISTORY[epoch])
    log.copies.drop_below(HISTORY[0].end_offset)
    assert bounds(log) == [(HISTORY[1].start_offset, HISTORY[1].end_offset)]
    assert fill(log, HISTORY[2])
    assert bounds(log) == []
    assert log.start_offset == HISTORY[1].start_offset
    log.close()
    assert bounds(log) == []
