"""A filter finds exactly the matching records, in any state of the indexes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append
from tests.broker.storage.keyed import (
    KEYS,
    TAGS,
    ByHand,
    keyed,
    matching,
    newest_matching,
    random_batch,
    read_matching,
    truth,
)
from tests.broker.storage.logs import epoch_logs, new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import SHARED
from tidelog_broker.storage.engines.stores import BUILT_IN, close_engines
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.matching import MatchingReader, RecordFilter
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

BOTH: frozenset[TextColumn] = frozenset({"key", "tag"})
COLUMNS: tuple[frozenset[TextColumn], ...] = (BOTH, frozenset({"key"}), frozenset({"tag"}), frozenset())
DIRECTORY_SUFFIXES = (".key", ".tag")


def opened(
    disk: Disk, columns: frozenset[TextColumn] = BOTH, *, segment_bytes: int = 8192, home: Path = HOME
) -> PartitionLog:
    log = PartitionLog.open(
        disk, home, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=segment_bytes
    )
    log.indexes.switch(columns)
    return log


def fill(log: PartitionLog, batches: list[bytearray], *, epoch: int = 0) -> None:
    if log.active is None:
        log.start_epoch(epoch, log.end_offset)
    for one in batches:
        append(log, [one], epoch=epoch)


def index_files(sim: SimDisk, log: PartitionLog) -> list[str]:
    return [name for epoch in log.epochs for name in sim.list_dir(epoch.directory) if name.endswith(DIRECTORY_SUFFIXES)]


def check(log: PartitionLog, random: Random) -> None:
    """Compare some reads with the stored records."""
    there = truth(log)
    ends = sorted({0, *(one.offset + 1 for one in there)})
    for _ in range(3):
        wanted = RecordFilter(random.choice((None, b"absent", *KEYS[1:])), random.choice((None, "absent", *TAGS[1:])))
        limit = random.choice((log.end_offset, random.choice(ends)))
        offset = random.randint(log.start_offset, max(log.start_offset, limit))
        work = {"work_bytes": random.choice((1, 3000, 1 << 20))}
        found = read_matching(
            log, wanted, offset=offset, limit_offset=limit, max_bytes=random.choice((1, 2000, 1 << 20)), **work
        )
        expected = [one for one in matching(there, wanted) if one.offset >= offset]
        # Only whole batches end below the limit, so only records of the last batch may be missing.
        assert found == expected[: len(found)]
        assert len(found) == len(expected) or expected[len(found)].offset >= limit - 40
        if limit == log.end_offset:
            assert found == expected
            newest = newest_matching(log, wanted, limit_offset=limit, **work)
            last = matching(there, wanted)
            assert (newest.offset if newest else None) == (last[-1].offset if last else None)


def spoil(sim: SimDisk, log: PartitionLog, random: Random) -> None:
    """Delete, cut or overwrite an index file, as it lies on the disk."""
    for epoch in log.epochs:
        for path in [*sim.files(epoch.directory, ".key"), *sim.files(epoch.directory, ".tag")]:
            node = sim.node(path)
            match random.randint(0, 4):
                case 0:
                    sim.unlink(path)
                case 1:
                    del node.current[random.randint(0, len(node.current)) :]
                case 2 if node.current:
                    node.current[random.randrange(len(node.current))] ^= 0xFF
                case 3:
                    node.current[:] = random.randbytes(200)
                case _:
                    continue
            if sim.exists(path):
                node.sync()


@pytest.mark.parametrize("seed", range(40))
def test_reads_return_all_matching_records(seed: int) -> None:
    random = Random(seed)
    sim = new_disk()
    by_hand = ByHand() if random.random() < 0.6 else None
    disk = Disk(fs=sim, indexer=by_hand)
    log = opened(disk, random.choice(COLUMNS))
    log.start_epoch(0, 0)
    for _ in range(60):
        match random.randint(0, 11):
            case 0 if log.end_offset:
                log.start_epoch(log.epochs[-1].epoch + 1, log.end_offset)
            case 1 if log.active is not None and log.active.start_offset < log.end_offset:
                batches = [h.base_offset for h in log.active.reader.scan_headers(log.active.start_offset)]
                log.truncate_epoch(log.active.epoch, random.choice(batches))
            case 2:
                spoil(sim, log, random)
            case 3:
                log.close()
                spoil(sim, log, random)
                if random.random() < 0.5:
                    sim.power_cut(random)
                    sim = sim.restart()
                by_hand = ByHand() if by_hand is not None else None
                disk = Disk(fs=sim, indexer=by_hand)
                log = opened(disk, log.indexes.columns)
            case 4:
                log.indexes.switch(random.choice(COLUMNS))
            case 5:
                log.delete_before(random.randint(0, log.end_offset))
            case 6 if by_hand is not None:
                by_hand.run(random.randint(1, 5))
            case _:
                append(log, [random_batch(random) for _ in range(random.randint(1, 4))], epoch=log.epochs[-1].epoch)
        check(log, random)
    if by_hand is not None:
        by_hand.run()
        assert not by_hand.works
    log.close()
    assert sim.open_files == 0


def test_read_is_retried_when_an_epoch_is_replaced() -> None:
    disk = Disk(fs=new_disk())
    log = opened(disk)
    fill(log, [keyed([b"a", b"b"], [None, None]) for _ in range(3)])
    held = HeldEpochs(disk, log.directory, log.name, log.epochs, segment_bytes=8192)
    reader = MatchingReader(held, log.indexes)
    replacements = [1, 2]

    class Looking(RecordFilter):
        """A filter that is looked with while a compaction puts other files in place, and old ones go."""

        def hash_of(self, column: TextColumn | None) -> int:
            if replacements:
                replacements.pop()
                held.epochs = (*held.epochs,)  # another tuple
                raise ProtocolError(pb.OFFSET_OUT_OF_RANGE, "these files are gone")
            return super().hash_of(column)

    assert len(reader.read(0, 1 << 20, limit_offset=6, record_filter=Looking(b"a", None)).batches) == 3
    replacements.append(1)
    newest = reader.newest(limit_offset=6, record_filter=Looking(b"b", None))
    assert newest.offset == 5
    log.close()


def test_deleted_offset_is_out_of_range() -> None:
    log = opened(Disk(fs=new_disk()))
    fill(log, [keyed([b"a"], [None])])
    with pytest.raises(ProtocolError) as caught:
        log.matching.read(7, 1 << 20, limit_offset=9, record_filter=RecordFilter(b"a", None))
    assert caught.value.code == pb.OFFSET_OUT_OF_RANGE
    log.close()


def read_sizes(log: PartitionLog, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the size of each read of the log's newest segment from now on."""
    sizes: list[int] = []
    newest = epoch_logs(log)[-1]
    with newest.segment_reader.lease(newest.segments[-1]) as opened_segment:
        file = opened_segment.file
        pread = file.pread

        def counting(length: int, at: int) -> bytes:
            sizes.append(length)
            return pread(length, at)

        monkeypatch.setattr(file, "pread", counting)
    return sizes


def test_read_of_the_newest_record_after_its_search_reads_only_the_header_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = opened(Disk(fs=new_disk()))
    fill(log, [keyed([b"a", b"b", b"c"]), keyed([b"b", b"c", b"d"]), keyed([b"e"])])
    wanted = RecordFilter(b"c")
    newest = log.matching.newest(limit_offset=7, record_filter=wanted)
    assert newest.offset == 4
    sizes = read_sizes(log, monkeypatch)
    found = log.matching.read(4, 1, limit_offset=7, record_filter=wanted)
    assert sizes == [HEADER_BYTES]
    assert found.next_offset == 6
    assert [record.offset for record in RecordBatch.parse(found.batches[0])] == [4]
    whole = log.matching.read(4, 1 << 20, limit_offset=7, record_filter=wanted)
    assert [bytes(each) for each in whole.batches] == [bytes(each) for each in found.batches]


@pytest.mark.parametrize("engine", [*BUILT_IN, SHARED])
def test_read_after_a_search_finds_what_was_appended_after_a_truncation(engine: str, tmp_path: Path) -> None:
    partitions = tmp_path / "partitions"
    partitions.mkdir()
    disk = Disk(engines_dir=tmp_path / "engines", commit_log_dir=tmp_path / "commit-log")
    log = opened(disk, home=partitions)
    log.start_epoch(0, 0, engine=engine)
    fill(log, [keyed([b"a"]), keyed([b"b", b"c", b"d"])])
    wanted = RecordFilter(b"c")
    assert log.matching.newest(limit_offset=4, record_filter=wanted).offset == 2
    log.truncate_epoch(0, 1)
    fill(log, [keyed([b"c", b"x", b"y"])])
    found = log.matching.read(1, 1, limit_offset=4, record_filter=wanted)
    assert [record.offset for record in RecordBatch.parse(found.batches[0])] == [1]
    log.close()
    close_engines(disk.engines)
