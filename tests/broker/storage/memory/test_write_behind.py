"""Records in memory that are written to files in the background: restarts, and disks that are full or fail."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch, read_all
from tests.broker.storage.logs import disk_on, new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.engine.store import EpochStart, EpochStore
from tidelog_broker.storage.engines.stores import create_store, engine_named, engine_names, open_store, remove_store
from tidelog_broker.storage.epoch.segment_engine import segment_engine
from tidelog_broker.storage.io.errors import MemoryFullError, StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.memory.file_copy import FileCopy
from tidelog_broker.storage.memory.memory_engine import MemoryBudget
from tidelog_broker.storage.memory.write_behind import (
    Unwritten,
    WriteAtOnce,
    WriteBehindEngine,
    WriteBehindStore,
    WriterThread,
)
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.topic_settings import MEMORY_ASYNC

EPOCH = HOME / "epoch-00000000"
MEMORY_BYTES = 1 << 20


class ByHand:
    """Writes nothing by itself; tests call `FileCopy.write`."""

    def __init__(self) -> None:
        self.woken = 0

    def wake(self, copy: FileCopy) -> None:
        """Count the call."""
        self.woken += 1


def started(sim: SimDisk, schedule: WriteAtOnce | ByHand | None = None, *, bytes_max: int = MEMORY_BYTES) -> Disk:
    disk = disk_on(sim)
    budget = MemoryBudget(bytes_max=bytes_max, topic_bytes_max=bytes_max)
    disk.engines[MEMORY_ASYNC] = WriteBehindEngine(sim, budget, segment_engine(disk), schedule or ByHand())
    return disk


def engine_of(disk: Disk) -> WriteBehindEngine:
    engine = engine_named(disk, MEMORY_ASYNC)
    assert isinstance(engine, WriteBehindEngine)
    return engine


def created(disk: Disk) -> WriteBehindStore:
    start = EpochStart(TOPIC_ID, PARTITION, 0, 0)
    store = create_store(disk, EPOCH, start, engine=MEMORY_ASYNC, segment_bytes=4096)
    assert isinstance(store, WriteBehindStore)
    return store


def opened(disk: Disk, *, sealed_end_offset: int | None = None) -> EpochStore | None:
    return open_store(disk, EPOCH, segment_bytes=4096, sealed_end_offset=sealed_end_offset)


def reopened(disk: Disk) -> EpochStore:
    store = opened(disk)
    assert store is not None
    return store


def write_all(store: WriteBehindStore) -> None:
    while store.copy.write(1 << 20):
        pass
    store.copy.sync()


# --- restarts ------------------------------------------------------------------------------------------


def test_restart_finds_what_was_written_and_says_that_the_copy_is_lost() -> None:
    sim = new_disk()
    store = created(started(sim))
    written = append(store, [batch(bytes([number]) * 900) for number in range(20)])
    write_all(store)
    append(store, [batch(b"only in memory")])
    again = reopened(started(sim.restart()))
    assert (read_all(again), again.end_offset, again.is_lost, again.state) == (written, 20, True, "active")
    more = append(again, [batch(b"after the restart")])
    assert read_all(again) == written + more


def test_power_cut_takes_what_was_not_synced() -> None:
    sim = new_disk()
    store = created(started(sim))
    written = append(store, [batch(b"synced")])
    write_all(store)
    written += append(store, [batch(bytes(600)) for _ in range(5)])
    while store.copy.write(1 << 20):
        pass
    for seed in range(10):
        again = reopened(started(sim.power_cut(Random(seed))))
        found = read_all(again)
        assert found == written[: len(found)]
        assert found


def test_sealed_store_is_whole_or_lost() -> None:
    sim = new_disk()
    store = created(started(sim))
    written = append(store, [batch(b"a"), batch(b"b")])
    store.copy.write(1)
    store.seal()
    assert opened(started(sim.copy()), sealed_end_offset=2) is not None
    append_offset = store.end_offset
    assert append_offset == 2
    write_all(store)
    again = opened(started(sim.power_cut(Random(1))), sealed_end_offset=2)
    assert again is not None
    assert (read_all(again), again.state, again.is_lost) == (written, "sealed", False)


def test_sealed_store_of_which_a_part_was_written_is_lost() -> None:
    sim = new_disk()
    store = created(started(sim))
    append(store, [batch(b"a")])
    write_all(store)
    append(store, [batch(b"b")])
    store.seal()
    disk = started(sim.restart())
    assert opened(disk, sealed_end_offset=2) is None
    assert engine_of(disk).budget.used_bytes == 0


def test_copy_stays_lost_when_it_is_opened_again() -> None:
    sim = new_disk()
    store = created(started(sim))
    append(store, [batch(b"a")])
    write_all(store)
    disk = started(sim.restart())
    again = reopened(disk)
    append(again, [batch(b"fetched")])
    again.close()
    last = reopened(disk)
    assert (last.end_offset, last.is_lost) == (2, True)


def test_restart_with_less_memory_finds_a_shorter_prefix() -> None:
    sim = new_disk()
    store = created(started(sim, WriteAtOnce(), bytes_max=8 << 20))
    written = [one for number in range(80) for one in append(store, [batch(bytes([number]) * 60_000)])]
    disk = started(sim.restart(), WriteAtOnce(), bytes_max=2 << 20)
    again = reopened(disk)
    found = read_all(again)
    assert 0 < len(found) < 80
    assert found == written[: len(found)]
    assert engine_of(disk).budget.used_bytes <= 2 << 20
    last = reopened(started(sim.restart(), bytes_max=1 << 30))
    assert read_all(last) == found, "the files were written again"


def test_damaged_record_ends_the_prefix() -> None:
    sim = new_disk()
    store = created(started(sim))
    written: list[bytes] = []
    for number in range(3):
        written += append(store, [batch(bytes([number]) * 3000)])
        write_all(store)
    names = sorted(name for name in sim.list_dir(EPOCH) if name.endswith(SEGMENT_SUFFIX))
    sim.node(EPOCH / names[1]).current[2000] ^= 1
    again = reopened(started(sim.restart(), WriteAtOnce()))
    found = read_all(again)
    assert found == written[: len(found)] != written
    append(again, [batch(b"other")])
    assert read_all(reopened(started(sim.restart())))[:-1] == found


@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_at_any_step_leaves_a_prefix(seed: int) -> None:
    """Records that were truncated or replaced before the power cut do not come back."""
    random = Random(f"write behind {seed}")
    sim = new_disk()
    disk = started(sim)
    store = created(disk)
    model: list[bytes] = []
    first = 0
    cut_at = sim.steps + random.randint(1, 120)
    sim.cut_at = cut_at
    before = model
    try:
        for _ in range(200):
            before = model  # A record that was replaced before this step must not come back.
            match random.choice(["append"] * 4 + ["write"] * 4 + ["sync", "truncate", "delete", "close", "seal"]):
                case "append":
                    model = model + append(store, [batch(random.randbytes(random.randint(1, 900)))])
                case "write":
                    store.copy.write(random.choice((1, 2000)))
                case "sync":
                    store.copy.sync()
                case "truncate":
                    kept = random.randint(0, len(model))
                    model = model[:kept]
                    store.truncate(first + kept)
                case "delete" if store.segment_count > 1:
                    gone = store.oldest_end_offset - first
                    store.delete_oldest_segment()
                    before = model = model[gone:]
                    first += gone
                case "seal" if model:
                    store.seal()
                    store.copy.sync()
                    store.truncate(first)
                    model = []
                case "close":
                    store.close(sync=random.random() < 0.5)
                    again = reopened(disk)
                    assert isinstance(again, WriteBehindStore)
                    store = again
                case _:
                    pass
    except PowerCutError:
        pass
    assert sim.is_off, "the run is long enough"
    sim = sim.power_cut(random) if random.random() < 0.7 else sim.restart()
    restarted = reopened(started(sim))
    found = read_all(restarted)
    skipped = first - restarted.start_offset
    possible = [whole[: len(found[max(skipped, 0) :])] for whole in (model, before)]
    assert found[max(skipped, 0) :] in possible


# --- the disk ------------------------------------------------------------------------------------------


def test_full_disk_keeps_records_in_memory_until_there_is_room() -> None:
    sim = new_disk()
    disk = started(sim)
    store = created(disk)
    sim.free_bytes = 0
    written = append(store, [batch(bytes(900)) for _ in range(20)])
    assert not store.copy.write(1 << 20)
    assert engine_of(disk).unwritten() == Unwritten(store.size_bytes, 1)
    written += append(store, [batch(b"accepted all the same")])
    assert (store.state, read_all(store)) == ("active", written)
    sim.free_bytes = None
    write_all(store)
    assert engine_of(disk).unwritten() == Unwritten(0, 0)
    assert read_all(reopened(started(sim.restart()))) == written


@pytest.mark.parametrize("operation", ["write", "sync", "allocate", "create"])
def test_failing_disk_keeps_records_in_memory(operation: str, caplog: pytest.LogCaptureFixture) -> None:
    sim = new_disk()
    disk = started(sim)
    store = created(disk)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what == operation else None
    written = append(store, [batch(bytes(900)) for _ in range(5)])
    write_all(store)
    assert engine_of(disk).unwritten().stopped == 1
    assert "stay in memory only" in caplog.text
    sim.fail = lambda what, path: None
    written += append(store, [batch(b"more")])
    write_all(store)
    assert engine_of(disk).unwritten().stopped == 1, "a failed sync is never repeated"
    assert (store.state, read_all(store)) == ("active", written)
    found = read_all(reopened(started(sim.restart())))
    assert found == written[: len(found)]


def test_records_that_cannot_be_truncated_on_the_disk_are_removed_from_it() -> None:
    sim = new_disk()
    disk = started(sim)
    store = created(disk)
    written = append(store, [batch(b"a"), batch(b"b")])
    write_all(store)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what in {"truncate", "write", "sync"} else None
    with pytest.raises(StorageFailedError, match="truncating the written records"):
        failing(sim, {"truncate", "write", "sync", "unlink"}, lambda: store.truncate(1))
    sim = new_disk()
    store = created(started(sim))
    append(store, [batch(b"a"), batch(b"b")])
    write_all(store)
    failing(sim, {"truncate"}, lambda: store.truncate(1))
    append(store, [batch(b"c")])
    assert read_all(store)[0] == written[0]
    for seed in range(5):
        assert read_all(reopened(started(sim.power_cut(Random(seed))))) == []


def failing(sim: SimDisk, operations: set[str], work: object) -> None:
    """Do something while operations of the disk fail."""
    assert callable(work)
    sim.fail = lambda what, path: OSError(errno.EIO, "broken") if what in operations else None
    try:
        work()
    finally:
        sim.fail = lambda what, path: None


def test_retention_that_overtakes_the_disk_begins_the_files_again() -> None:
    sim = new_disk()
    store = created(started(sim))
    append(store, [batch(b"first")])
    write_all(store)
    while store.segment_count < 4:
        append(store, [batch(bytes(900))])
    store.delete_oldest_segment()
    store.delete_oldest_segment()
    write_all(store)
    again = reopened(started(sim.restart()))
    assert (again.start_offset, again.start_digest) == (store.start_offset, store.start_digest)
    assert read_all(again) == read_all(store)


def test_writer_is_woken_by_each_change_that_the_files_have_to_follow() -> None:
    schedule = ByHand()
    disk = started(new_disk(), schedule)
    store = created(disk)
    counts = [schedule.woken]
    append(store, [batch(bytes(900))])
    counts.append(schedule.woken)
    store.close(sync=False)
    again = reopened(disk)  # Its first record is not written yet.
    counts.append(schedule.woken)
    while again.segment_count < 2:
        append(again, [batch(bytes(900))])
    before = schedule.woken
    again.delete_oldest_segment()
    assert schedule.woken == before + 1
    again.seal()
    assert schedule.woken == before + 2
    assert counts == [0, 1, 2]


def test_restart_reserves_the_memory_of_the_records_that_it_has_read() -> None:
    sim = new_disk()
    store = created(started(sim))
    append(store, [batch(bytes(900)), batch(b"a")])
    write_all(store)
    disk = started(sim.restart())
    again = reopened(disk)
    assert engine_of(disk).budget.used_bytes == again.size_bytes > 0


def test_files_of_deleted_records_are_deleted() -> None:
    sim = new_disk()
    store = created(started(sim, WriteAtOnce()))
    while store.segment_count < 6:
        append(store, [batch(bytes(900))])
    while store.segment_count > 1:
        store.delete_oldest_segment()
    assert len([name for name in sim.list_dir(EPOCH) if name.endswith(SEGMENT_SUFFIX)]) in {1, 2}


def test_memory_bound_is_shared_with_the_memory_engine() -> None:
    disk = disk_on(new_disk())
    disk.memory_bytes = 400_000
    store = created(disk)
    append(store, [batch(bytes(10_000))])
    with pytest.raises(MemoryFullError, match="200,000"):
        store.ensure_space(200_001)
    memory = engine_named(disk, "memory")
    assert engine_of(disk).budget is memory.budget  # type: ignore[attr-defined]
    store.close()
    remove_store(disk, EPOCH)
    assert engine_of(disk).budget.used_bytes == 0


def test_variant_is_found_by_its_name_and_not_listed() -> None:
    assert MEMORY_ASYNC not in engine_names()
    assert engine_named(disk_on(new_disk()), MEMORY_ASYNC).name == MEMORY_ASYNC


# --- the thread ----------------------------------------------------------------------------------------


def test_thread_writes_what_is_appended_and_ends_when_idle(tmp_path: Path) -> None:
    disk = Disk(namer=IoWorkers(1))
    writer = WriterThread(period_s=0.001, idle_s=0.05)
    budget = MemoryBudget(bytes_max=MEMORY_BYTES, topic_bytes_max=MEMORY_BYTES)
    disk.engines[MEMORY_ASYNC] = engine = WriteBehindEngine(disk.fs, budget, segment_engine(disk), writer)
    start = EpochStart(TOPIC_ID, PARTITION, 0, 0)
    directory = tmp_path / "epoch-00000000"
    store = create_store(disk, directory, start, engine=MEMORY_ASYNC, segment_bytes=1 << 20)
    for _ in range(2):
        append(store, [batch(bytes(900)) for _ in range(20)])
        wait_for(lambda: engine.unwritten().backlog_bytes == 0)
        wait_for(lambda: not writer.is_running)
    store.close()
    again = create_again(directory)
    assert again.end_offset == 40


def test_close_writes_the_rest(tmp_path: Path) -> None:
    disk = Disk(namer=IoWorkers(1))
    start = EpochStart(TOPIC_ID, PARTITION, 0, 0)
    directory = tmp_path / "epoch-00000000"
    store = create_store(disk, directory, start, engine=MEMORY_ASYNC, segment_bytes=1 << 20)
    append(store, [batch(bytes(900)) for _ in range(20)])
    store.close()
    assert create_again(directory).end_offset == 20


def create_again(directory: Path) -> EpochStore:
    store = open_store(Disk(), directory, segment_bytes=1 << 20)
    assert store is not None
    return store


def wait_for(condition: object) -> None:
    """Wait until a condition holds."""
    assert callable(condition)
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)
