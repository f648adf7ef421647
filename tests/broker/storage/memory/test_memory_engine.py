"""The memory of the engine, shared by topics, and what a log finds after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch, read_all
from tests.broker.storage.logs import disk_on, new_disk, open_partition
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import EpochStart, EpochStore
from tidelog_broker.storage.engines.stores import create_store, engine_named, remove_store
from tidelog_broker.storage.io.errors import DamagedError, MemoryFullError
from tidelog_broker.storage.memory.file_copy import FILE_NAME
from tidelog_broker.storage.memory.memory_engine import MemoryEngine
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb

OTHER_TOPIC = bytes(reversed(range(16)))
BODY = bytes(10_000)


def engine_of(disk: Disk) -> MemoryEngine:
    engine = engine_named(disk, MEMORY)
    assert isinstance(engine, MemoryEngine)
    return engine


def created(disk: Disk, name: str, topic_id: bytes = TOPIC_ID) -> EpochStore:
    start = EpochStart(topic_id, PARTITION, 0, 0)
    return create_store(disk, HOME / name, start, engine=MEMORY, segment_bytes=1 << 20)


def fill(store: EpochStore) -> int:
    """Append until the engine refuses; return the number of batches."""
    for number in range(10_000):
        try:
            append(store, [batch(BODY)])
        except MemoryFullError:
            return number
    raise AssertionError("the memory is not bounded")


def two_epochs(sim: SimDisk, disk: Disk) -> tuple[PartitionLog, list[bytes]]:
    log = PartitionLog.open(disk, HOME, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=1 << 20)
    written: list[bytes] = []
    for epoch in range(2):
        log.start_epoch(epoch, log.end_offset, engine=MEMORY)
        written += append(log, [batch(), batch()], epoch=epoch)
    assert read_all(log) == written
    return log, written


def test_one_topic_leaves_half_of_the_memory_to_others() -> None:
    disk = disk_on(new_disk())
    disk.memory_bytes = 1_000_000
    greedy, polite = created(disk, "greedy"), created(disk, "polite", OTHER_TOPIC)
    count = fill(greedy)
    assert greedy.size_bytes <= 500_000
    for _ in range(20):
        append(polite, [batch(BODY)])
    assert fill(created(disk, "greedy-2")) == 0, "the bound is that of the topic, not of one partition"
    assert count > 20
    assert engine_of(disk).budget.used_bytes <= 1_000_000


def test_refusal_names_the_bounds_and_the_remedy() -> None:
    disk = disk_on(new_disk())
    disk.memory_bytes = 1_000_000
    store = created(disk, "topic")
    with pytest.raises(MemoryFullError, match=r"0 of 1,000,000 bytes .*, and for topic id \w+ 0 of 500,000") as full:
        store.ensure_space(500_001)
    assert full.value.code == pb.OVERLOADED
    append(store, [batch()])


def test_memory_is_free_again_once_records_are_deleted_or_cut_off() -> None:
    disk = disk_on(new_disk())
    disk.memory_bytes = 1_000_000
    store = created(disk, "topic")
    store.segment_bytes = 50_000
    count = fill(store)
    store.delete_oldest_segment()
    assert fill(store) > 0
    store.truncate(store.start_offset)
    assert fill(store) > count // 2
    store.close()
    remove_store(disk, store.directory)
    assert engine_of(disk).budget.used_bytes == 0


def test_closed_store_gives_back_what_it_has_only_reserved() -> None:
    disk = disk_on(new_disk())
    store = created(disk, "topic")
    append(store, [batch()])
    assert engine_of(disk).budget.used_bytes > store.size_bytes
    store.close()
    assert engine_of(disk).budget.used_bytes == store.size_bytes


def test_log_is_whole_after_it_was_closed_and_has_nothing_after_a_restart() -> None:
    sim = new_disk()
    disk = disk_on(sim)
    log, written = two_epochs(sim, disk)
    log.close()
    again = PartitionLog.open(disk, HOME, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=1 << 20)
    assert read_all(again) == written
    assert not any(held.is_lost for held in again.epochs)
    again.close()
    restarted = open_partition(sim.restart())
    assert [(held.epoch, held.start_offset, held.end_offset, held.is_lost) for held in restarted.epochs] == [
        (1, 2, 2, True)
    ], "an ended epoch that is lost is not in the log"
    assert (restarted.state, restarted.limbo) == ("active", None)
    restarted.close()


def test_durable_epoch_before_a_lost_one_leaves_the_log_as_a_copy() -> None:
    """The log has no gap: epochs before a lost one return once that one was fetched."""
    sim = new_disk()
    log = open_partition(sim)
    written: list[bytes] = []
    for epoch, engine in ((0, "segment"), (1, MEMORY), (2, "segment")):
        log.start_epoch(epoch, log.end_offset, engine=engine)
        written += append(log, [batch(), batch()], epoch=epoch)
    ends = [(held.end_offset, held.end_digest) for held in log.epochs]
    log.close()
    log = open_partition(sim.restart())
    assert ([held.epoch for held in log.epochs], log.copies.partial_epochs) == ([2], (0,))
    log.copies.begin_copy(1, 2, *ends[1], engine=MEMORY)
    log.copies.append_copy(1, written[2:4])
    log.copies.finish_copy(1)
    log.copies.begin_copy(0, 0, *ends[0])
    log.copies.finish_copy(0)
    assert [held.engine for held in log.epochs] == ["segment", MEMORY, "segment"]
    assert read_all(log) == written
    log.close()


def test_deleted_partition_frees_its_memory() -> None:
    sim = new_disk()
    disk = disk_on(sim)
    log, _ = two_epochs(sim, disk)
    log.delete()
    assert engine_of(disk).budget.used_bytes == 0


@pytest.mark.parametrize("damage", ["missing", "short", "flipped", "version"])
def test_store_without_its_file_cannot_be_opened(damage: str) -> None:
    sim = new_disk()
    disk = disk_on(sim)
    store = created(disk, "topic")
    path = store.directory / FILE_NAME
    store.close()
    data = sim.node(path).current
    if damage == "missing":
        sim.unlink(path)
    elif damage == "short":
        del data[-1:]
    else:
        data[4 if damage == "version" else 20] ^= 1
    with pytest.raises(DamagedError, match=str(path)):
        engine_of(disk).open(store.directory, segment_bytes=1 << 20)
    engine_of(disk).forget(store.directory)
    assert engine_of(disk).is_deleted(sim.list_dir(store.directory)) is (damage == "missing")


def test_names_of_parts_are_paths_below_the_directory() -> None:
    disk = disk_on(new_disk())
    store = created(disk, "topic")
    append(store, [batch()])
    store.roll()
    assert [part.path for part in store.segments] == [Path(store.directory / f"{offset:020d}") for offset in (0, 1)]
