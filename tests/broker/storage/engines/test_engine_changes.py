"""A process or its machine that ends at any step of a change of the engine, and a disk that fills up there."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append, batch, read_all
from tests.broker.storage.logs import disk_on, new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.engine.store import SEGMENT, EpochStore
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.topic_settings import MEMORY_ASYNC

ENGINES = (SEGMENT, MEMORY, MEMORY_ASYNC)
CHANGES = [(before, after) for before in ENGINES for after in ENGINES if before != after]
STEPS_MAX = 200


def opened(sim: SimDisk, disk: Disk | None = None) -> PartitionLog:
    """Open the log, in a process of its own or in that of `disk`."""
    disk = disk or disk_on(sim)
    return PartitionLog.open(disk, HOME, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=1 << 20)


def change(log: PartitionLog, engine: str) -> list[bytes]:
    """End the newest epoch, begin the next one in another engine, and store a record there."""
    log.start_epoch(2, log.end_offset, engine=engine)
    written = append(log, [batch(b"after")], epoch=2)
    log.sync()
    return written


def prepared(engine: str) -> tuple[SimDisk, PartitionLog, list[bytes], list[bytes]]:
    """Return a log with a durable epoch, and another in an engine; the records of both."""
    sim = new_disk()
    log = opened(sim)
    log.start_epoch(0, 0)
    first = append(log, [batch(b"durable")], epoch=0)
    log.start_epoch(1, 1, engine=engine)
    second = append(log, [batch(b"before"), batch(b"before too")], epoch=1)
    log.sync()
    return sim, log, first, second


@pytest.mark.parametrize("ends", ["killed", "power cut"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_process_that_ends_at_any_step_keeps_what_its_engines_promise(before: str, after: str, ends: str) -> None:
    """Records of files stay; records in memory are missing as a whole epoch, or from an offset on in the open epoch."""
    is_over = False
    steps = 0
    while not is_over:
        steps += 1
        assert steps < STEPS_MAX
        sim, log, first, second = prepared(before)
        third: list[bytes] = []
        sim.cut_at = sim.steps + steps
        try:
            third = change(log, after)
            is_over = True
        except PowerCutError:
            pass
        sim = sim.restart() if ends == "killed" else sim.power_cut(Random(steps))
        log = opened(sim)
        assert log.limbo is None
        check_kept(log, (SEGMENT, before, after), (first, second, third))
        log.close()
        check_kept(opened(sim.restart()), (SEGMENT, before, after), (first, second, third))
    assert steps > 5


def check_kept(log: PartitionLog, engines: Sequence[str], written: Sequence[list[bytes]]) -> None:
    """Check the epochs of a log after a restart during a change.

    Args:
        engines: of epochs 0 to 2.
        written: the records of each epoch; the last one is empty if the change was not complete.
    """
    held = {store.epoch: store for store in log.epochs}
    found = {epoch: list(map(bytes, all_of(store))) for epoch, store in held.items()}
    for epoch, records in found.items():
        possible = written[epoch]
        assert records == possible[: len(records)] or not possible
        is_durable = engines[epoch] == SEGMENT
        is_open = epoch == max(held)
        if is_durable or not is_open:
            assert len(records) >= len(possible), "an epoch in files, or one that has ended, is whole"
        else:
            assert held[epoch].is_lost
    if 0 not in found:
        assert 1 not in found, "the log has no gap"
        assert 0 in log.copies.partial_epochs, "the durable epoch is beside the log"


def all_of(store: EpochStore) -> list[memoryview]:
    return store.reader.read(store.start_offset, 1 << 20, limit_offset=store.end_offset).batches


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_full_disk_refuses_the_change_and_room_again_allows_it(before: str, after: str) -> None:
    sim, log, first, second = prepared(before)
    sim.fail = no_space
    with pytest.raises(DiskFullError):
        change(log, after)
    assert (log.end_offset, read_all(log)) == (3, first + second)
    sim.fail = lambda operation, path: None
    third = change(log, after)
    assert read_all(log) == first + second + third
    assert [store.engine for store in log.epochs] == [SEGMENT, before, after]
    log.close()


def no_space(operation: str, path: object) -> OSError | None:
    del path
    return (
        OSError(28, "no space left on the simulated disk") if operation in {"create", "make_dir", "allocate"} else None
    )


def test_a_hundred_changes_lose_nothing_before_a_restart_and_no_file_after_it() -> None:
    sim = new_disk()
    disk = disk_on(sim)
    log = opened(sim, disk)
    random = Random(1)
    written: list[bytes] = []
    engines: list[str] = []
    for epoch in range(101):
        engines.append(random.choice(ENGINES))
        log.start_epoch(epoch, log.end_offset, engine=engines[-1])
        written += append(log, [batch(b"%d" % epoch)], epoch=epoch)
        if random.random() < 0.1:
            log.close()
            log = opened(sim, disk)
    assert read_all(log) == written
    assert [store.engine for store in log.epochs] == engines
    log.close(sync=False)
    log = opened(sim.restart())
    assert log.limbo is None
    kept = {*(store.epoch for store in log.epochs), *log.copies.partial_epochs}
    assert kept >= {epoch for epoch, engine in enumerate(engines) if engine == SEGMENT}
    log.close()
