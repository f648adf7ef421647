"""A pass keeps the records that a model keeps, regardless of its memory limit and of earlier passes."""

from __future__ import annotations

from random import Random

import pytest
from tests.broker.storage.build import append, read_all
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import (
    all_records,
    compact,
    expected,
    keyed_batch,
    keyed_epochs,
    sealed,
    some_rows,
)

from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition import compaction_pass, newest_search
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, PassStoppedError, Terms
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.errors import ProtocolError


def some_terms(random: Random, log: PartitionLog) -> Terms:
    end = sealed(log)[-1].end_offset
    return Terms(end, random.randint(0, end), random.choice([0, 0, random.randint(0, end)]))


@pytest.mark.parametrize("seed", range(40))
def test_pass_keeps_the_same_records_as_a_model(seed: int) -> None:
    random = Random(seed)
    sim = new_disk()
    log = open_partition(sim)
    keyed_epochs(log, random, epochs=random.randint(2, 5))
    before, terms = all_records(log), some_terms(random, log)
    compact(log, terms, memory_bytes=random.choice([16, 64, 300, 1 << 20]))
    assert all_records(log) == expected(before, terms.horizon, terms)
    assert all_records(open_partition(sim.restart())) == expected(before, terms.horizon, terms)


@pytest.mark.parametrize(("tombstones_below", "left"), [(1, [1]), (2, [])])
def test_pass_keeps_a_tombstone_at_the_tombstone_horizon_and_drops_the_one_before_it(
    tombstones_below: int, left: list[int]
) -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    append(log, [keyed_batch([(b"k", b"v"), (b"k", None)])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    compact(log, Terms(2, tombstones_below, 0))
    assert [record.offset for record in all_records(log)] == left


@pytest.mark.parametrize(("floor", "left"), [(1, [1, 2]), (2, [2])])
def test_pass_keeps_a_record_at_the_floor_and_drops_the_one_before_it(floor: int, left: list[int]) -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    append(log, [keyed_batch([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    compact(log, Terms(3, 0, floor))
    assert [record.offset for record in all_records(log)] == left


@pytest.mark.parametrize("seed", range(20))
def test_replica_that_missed_passes_converges(seed: int) -> None:
    """Bytes and digests are equal, not only records: earlier passes of a copy do not influence the newest one."""
    random = Random(seed)
    logs = [open_partition(new_disk()) for _ in range(2)]
    for log in logs:
        keyed_epochs(log, Random(seed), epochs=4)
    often, once = logs
    for _ in range(random.randint(1, 3)):
        done = sealed(often)[: random.randint(1, 3)]
        earlier = Terms(done[-1].end_offset, random.randint(0, 5), 0)
        compact(often, earlier, epochs=done, decided=random.randint(4, 50))
    end = sealed(once)[-1].end_offset
    terms = Terms(end, end // 2 + 5, 0)
    made = [compact(log, terms, memory_bytes=memory) for log, memory in ((often, 1 << 20), (once, 100))]
    assert made[0] == made[1]
    assert read_all(often) == read_all(once)


def test_many_keys_are_processed_in_slices_and_ranges() -> None:
    sim = new_disk()
    log = open_partition(sim, segment_bytes=1 << 16)
    log.start_epoch(0, 0)
    for number in range(40):
        rows = [(b"%d" % (key % 1500), b"v%d" % number) for key in range(number * 50, number * 50 + 100)]
        append(log, [keyed_batch([(key, value) for key, value in rows])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    before = all_records(log)
    terms = Terms(log.end_offset, 0, 0)
    one = CompactionPass(log.reader, log.compacted, sealed(log), terms, begin=0, memory_bytes=400, pace=lambda _: None)
    made = one.run()
    log.compacted.put_in_place(0, 1, made[0].end)
    assert all_records(log) == expected(before, terms.horizon, terms)
    assert made[0].size_bytes == log.epochs[0].size_bytes


@pytest.mark.parametrize("seed", range(20))
def test_pass_beyond_its_memory_keeps_the_same_records_as_a_model(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_search, "MERGE_ROWS", 8)
    monkeypatch.setattr(newest_search, "SLICES_MAX", 16)
    random = Random(seed)
    log = open_partition(new_disk())
    keyed_epochs(log, random, epochs=6, keys=60)
    before, terms = all_records(log), some_terms(random, log)._replace(floor=0)
    epochs = [one for one in sealed(log) if one.end_offset > one.start_offset]
    memory_bytes = random.choice([60, 150])
    one = CompactionPass(
        log.reader, log.compacted, epochs, terms, begin=0, memory_bytes=memory_bytes, pace=lambda _: None
    )
    for made in one.run():
        log.compacted.put_in_place(made.epoch, 99, made.end)
    assert one.slices > 1, "the keys fit the memory"
    assert all_records(log) == expected(before, terms.horizon, terms)


def test_pass_ends_even_if_one_key_exceeds_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_search, "MERGE_ROWS", 1)
    monkeypatch.setattr(newest_search, "SLICES_MAX", 4)
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    append(log, [keyed_batch([(b"k" * 1000, b"1"), (b"k" * 1000, b"2"), (b"l", b"3")])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    one = CompactionPass(
        log.reader, log.compacted, sealed(log), Terms(3, 0, 0), begin=0, memory_bytes=100, pace=lambda _: None
    )
    (made,) = one.run()
    log.compacted.put_in_place(0, 99, made.end)
    assert one.slices == 4
    assert [record.offset for record in all_records(log)] == [1, 2]


def test_stopped_pass_leaves_nothing() -> None:
    sim = new_disk()
    log = open_partition(sim)
    keyed_epochs(log, Random(3), epochs=3)
    before, names = read_all(log), sim.list_dir(log.directory)

    def stop(_: int) -> None:
        raise PassStoppedError

    with pytest.raises(PassStoppedError):
        CompactionPass(
            log.reader,
            log.compacted,
            sealed(log),
            Terms(log.epochs[-1].start_offset, 0, 0),
            begin=0,
            memory_bytes=1000,
            pace=stop,
        ).run()
    assert (read_all(log), sim.list_dir(log.directory)) == (before, names)


def test_deleted_beginning_is_covered_by_a_span() -> None:
    sim = new_disk()
    log = open_partition(sim, segment_bytes=2048)
    log.start_epoch(0, 0)
    random = Random(5)
    for _ in range(30):
        append(log, [keyed_batch(some_rows(random, keys=50))])
    log.sync()
    log.start_epoch(1, log.end_offset)
    log.delete_before(log.epochs[0].segments[3].end_offset)
    floor = log.start_offset
    assert floor > 0
    before = all_records(log)
    terms = Terms(log.end_offset, 0, floor)
    compact(log, terms, epochs=[sealed(log)[0]._replace(start_offset=0)])
    assert log.start_offset == 0
    assert all_records(log) == expected(before, terms.horizon, terms)


@pytest.mark.parametrize("seed", range(20))
def test_epoch_that_fits_no_batch_is_unchanged_with_later_tombstones(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    log = open_partition(new_disk())
    keyed_epochs(log, random, epochs=5)
    epochs = [one for one in sealed(log) if one.end_offset > one.start_offset]
    stuck = random.choice(epochs)
    before, terms = all_records(log), some_terms(random, log)._replace(floor=0)

    class Narrow(Deriver):
        def finish(self) -> list[bytearray]:
            if self.end_offset == stuck.end_offset:
                raise ProtocolError(pb.BATCH_TOO_LARGE, "too large")
            return super().finish()

    monkeypatch.setattr(compaction_pass, "Deriver", Narrow)
    memory_bytes = random.choice([16, 300, 1 << 20])
    one = CompactionPass(
        log.reader, log.compacted, epochs, terms, begin=0, memory_bytes=memory_bytes, pace=lambda _: None
    )
    made = one.run()
    assert one.left == [stuck.epoch]
    assert one.terms == terms._replace(tombstones_below=min(terms.tombstones_below, stuck.start_offset))
    assert [each.epoch for each in made] == [each.epoch for each in epochs if each != stuck]
    for each in made:
        log.compacted.put_in_place(each.epoch, 99, each.end)
    kept = set(expected(before, terms.horizon, one.terms))
    there = range(stuck.start_offset, stuck.end_offset)
    assert all_records(log) == [record for record in before if record in kept or record.offset in there]


def test_writing_reads_only_batches_with_survivors_and_the_last_batch_of_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)  # a batch a read
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    for number in range(40):
        append(log, [keyed_batch([(b"k" if number != 7 else None, b"v%d" % number)])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    reads: list[int] = []
    one = CompactionPass(
        log.reader, log.compacted, sealed(log), Terms(40, 0, 0), begin=0, memory_bytes=1 << 20, pace=reads.append
    )
    made = one.run()
    log.compacted.put_in_place(0, 1, made[0].end)
    assert [record.offset for record in all_records(log)] == [7, 39]
    assert len(reads) == 40 + 2, "the search reads all 40 batches, writing two of them"


def test_batches_without_keys_are_read_although_their_ranges_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    monkeypatch.setattr(newest_search, "UNKEYED_RANGES_MAX", 2)
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    for number in range(40):
        append(log, [keyed_batch([(b"k" if number % 4 else None, b"v%d" % number)])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    compact(log, Terms(40, 0, 0))
    assert [record.offset for record in all_records(log)] == [*range(0, 40, 4), 39]


def test_table_that_grows_too_large_is_halved_without_another_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    monkeypatch.setattr(newest_search, "MERGE_ROWS", 2)
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    for number in range(20):
        append(log, [keyed_batch([(b"%0100d" % number, b"old"), (b"%0100d" % number, b"v")])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    reads: list[int] = []
    one = CompactionPass(
        log.reader, log.compacted, sealed(log), Terms(40, 0, 0), begin=0, memory_bytes=600, pace=reads.append
    )
    one.run()
    assert one.slices > 1
    assert len(reads) % 20 == 0, "each search reads the log to its end"
    assert len(reads) <= 20 * (one.slices + 1)


def test_search_reports_a_batch_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction_pass, "READ_BYTES", 1)
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    for _ in range(3):
        append(log, [keyed_batch([(b"k", b"v")])])
    log.sync()
    log.start_epoch(1, log.end_offset)
    read = log.reader.read

    def skipping(offset: int, max_bytes: int, *, limit_offset: int) -> FoundBatches:
        return read(2 if offset == 1 else offset, max_bytes, limit_offset=limit_offset)

    monkeypatch.setattr(log.reader, "read", skipping)
    with pytest.raises(DamagedError, match="begins at offset 2, but the one before it ends at 1"):
        compact(log, Terms(3, 0, 0))
