"""The search for the newest records finds what a model finds, whether keys repeat, and whatever their hashes are."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from tests.broker.storage.build import append
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import (
    Row,
    all_records,
    compact,
    expected,
    keyed_batch,
    keyed_epochs,
    sealed,
)

from tidelog_broker.storage.partition import compaction_pass, newest_search
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, Terms
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.key_hash import Hashes, Slices, hash_slices, slices_of


def log_of_rows(rows: list[list[Row]]) -> PartitionLog:
    """Return a log with a batch of each of these, in one sealed epoch."""
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    for each in rows:
        append(log, [keyed_batch(each)])
    log.sync()
    log.start_epoch(1, log.end_offset)
    return log


def run_pass(log: PartitionLog, *, memory_bytes: int = 1 << 20) -> tuple[CompactionPass, list[int]]:
    """Run a pass over the first epoch, put its result in place, and return it with the sizes of its reads."""
    reads: list[int] = []
    (epoch,) = sealed(log)
    terms = Terms(epoch.end_offset, 0, 0)
    one = CompactionPass(
        log.reader, log.compacted, [epoch], terms, begin=0, memory_bytes=memory_bytes, pace=reads.append
    )
    for made in one.run():
        log.compacted.put_in_place(made.epoch, 99, made.end)
    return one, reads


def weak_hashes(bits: int) -> Callable[[Slices], Hashes]:
    """Return a hash of keys of which only the upper bits differ, so that most keys have the hash of another one."""
    return lambda slices: hash_slices(slices) & np.uint64(((1 << bits) - 1) << (64 - bits))


@pytest.mark.parametrize("seed", range(40))
def test_search_by_hash_keeps_the_same_records_as_a_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With keys most of which occur once, and few rows in memory; hashes of different keys may be equal."""
    random = Random(seed)
    monkeypatch.setattr(newest_search, "MERGE_ROWS", random.choice([1, 8, 1000]))
    monkeypatch.setattr(newest_search, "SLICES_MAX", 16)
    monkeypatch.setattr(newest_search, "SAMPLE_ROWS", random.choice([1, 20]))
    monkeypatch.setattr(newest_search, "CHECKED_ROWS", random.choice([1, 50]))
    monkeypatch.setattr(newest_search, "hash_slices", weak_hashes(random.choice([7, 9, 64])))
    monkeypatch.setattr(compaction_pass, "READ_BYTES", random.choice([1, 1000]))
    log = open_partition(new_disk())
    keyed_epochs(log, random, epochs=6, keys=random.choice([60, 300, 2000]))
    before = all_records(log)
    end = sealed(log)[-1].end_offset
    terms = Terms(end, random.randint(0, end), random.choice([0, 0, random.randint(0, end)]))
    compact(log, terms, memory_bytes=random.choice([300, 700, 1 << 20]))
    assert all_records(log) == expected(before, terms.horizon, terms)


def test_keys_with_equal_hashes_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    hashes = hash_slices(slices_of(pa.array(keys, pa.binary())))

    def colliding(slices: Slices) -> Hashes:
        found = hash_slices(slices)
        found[found == hashes[70]] = hashes[3]
        return found

    monkeypatch.setattr(newest_search, "hash_slices", colliding)
    log = log_of_rows([[(key, b"v")] for key in keys])
    run_pass(log)
    assert [record.key for record in all_records(log)] == keys


def test_log_without_repeated_keys_is_searched_by_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the keys themselves, 100 bytes each, exceed the memory: 12 bytes of each are stored."""
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    monkeypatch.setattr(newest_search, "MERGE_ROWS", 1)
    log = log_of_rows([[(b"%0100d" % number, b"v")] for number in range(40)])
    one, reads = run_pass(log, memory_bytes=500)
    assert one.slices == 1
    assert len(reads) == 40 + 40, "the search reads all 40 batches once, and so does writing"


def test_few_repeated_keys_are_read_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    log = log_of_rows([[(b"%d" % (number % 38), b"%d" % number)] for number in range(40)])
    before = all_records(log)
    _, reads = run_pass(log)
    assert len(reads) == 40 + 4 + 38, "the four batches with keys that repeat are read again to compare these"
    assert all_records(log) == expected(before, 40, Terms(40, 0, 0))


def test_more_keys_than_fit_are_searched_by_hash_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    monkeypatch.setattr(newest_search, "MERGE_ROWS", 1)
    monkeypatch.setattr(newest_search, "HASHED_BYTES", (1 << 20) // 15)
    log = log_of_rows([[(b"%d" % number, b"v")] for number in range(40)])
    before = all_records(log)
    one, reads = run_pass(log, memory_bytes=1 << 20)
    assert one.slices == 4
    assert len(reads) <= 40 * (one.slices + 1)
    assert all_records(log) == before
