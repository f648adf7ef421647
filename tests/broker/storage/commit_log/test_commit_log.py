"""Space and syncs of the commit log: reservations, a full disk and room again, one sync for all stores."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import append, batch, needed, read_all, stamp
from tests.broker.storage.commit_log.shared_world import LOG_DIR, SharedWorld
from tests.broker.storage.logs import new_disk

from tidelog_broker.storage.commit_log.commit_log import MARGIN_BYTES, Sizes
from tidelog_broker.storage.commit_log.records import FILE_SUFFIX
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_proto.limits import KIB, MIB

ROOMY = Sizes(file_bytes=256 * KIB, chunk_bytes=64 * KIB, log_bytes_min=64 * MIB, tail_bytes_max=MIB)


def world_of(count: int) -> SharedWorld:
    world = SharedWorld(new_disk(), sizes=ROOMY)
    for number in range(count):
        world.create(number)
    return world


def test_one_sync_makes_all_stores_durable() -> None:
    """Many stores append, one syncs: a power cut costs none of them anything, and the file was synced once."""
    world = world_of(20)
    syncs = 0

    def count(operation: str, path: Path) -> OSError | None:
        nonlocal syncs
        syncs += operation == "sync" and path.parent == LOG_DIR
        return None

    for number in range(20):
        world.append(number, [10])
        assert world.stores[number].sync_group is world.log, "the node may sync all of them with one call"
    world.sim.fail = count
    world.sync(3)
    for number in range(20):
        assert world.stores[number].sync() == 1
    assert syncs == 1
    again = SharedWorld(world.sim.restart(), world.models, sizes=ROOMY)
    again.check_recovered()
    again.check()


def test_full_disk_refuses_groups_and_passes() -> None:
    """On a full disk reserved groups are stored, others are refused with nothing changed; later there is room again."""
    world = world_of(4)
    for number in range(4):
        world.append(number, [100])
    reserved = [batch(bytes(3000))]
    world.stores[1].ensure_space(needed(reserved))
    world.sim.free_bytes = 0
    counts = {number: len(model.written) for number, model in world.models.items()}
    refused = 0
    for turn in range(200):
        store = world.stores[turn % 4]
        before = store.end_offset
        try:
            world.models[turn % 4].written += append(store, [batch(bytes(3000))])
        except DiskFullError:
            refused += 1
            assert (store.end_offset, store.state) == (before, "active")
    assert refused > 100
    assert len(world.models[1].written) > counts[1], "reserved groups are stored"
    world.check()
    world.sync(0)
    world.truncate(2, 0)
    world.sim.free_bytes = 10 * MIB
    for number in range(4):
        world.append(number, [3000])
    world.sync(0)
    world.check()
    last = world.after_crash(Random(1), power=True)
    last.check_recovered()
    last.check()


def test_start_on_a_full_disk_reads_everything() -> None:
    """A start needs no space; the first append does."""
    world = world_of(2)
    world.append(0, [100])
    for store in world.stores.values():
        store.close()
    again = SharedWorld(world.sim.restart(), world.models, sizes=ROOMY)
    again.sim.free_bytes = 0
    again.check_recovered()
    again.check()
    with pytest.raises(DiskFullError):
        append(again.stores[0], [batch(bytes(10))])
    again.sim.free_bytes = MIB
    again.append(0, [10])
    again.check()


def test_space_is_reserved_for_marks_and_other_records() -> None:
    """An append of a group that was reserved never allocates, however many stores the mark before it names."""
    world = world_of(300)
    for number in range(300):
        world.append(number, [0])
    world.sync(0)
    group = [batch(b"")]
    for number in range(300):
        world.stores[number].ensure_space(needed(group))
    world.sim.free_bytes = 0
    for number in range(300):
        store = world.stores[number]
        stamped = stamp([batch(b"")], offset=store.end_offset, digest=store.end_digest)
        store.append(stamped)
    assert world.log.position > 0
    assert MARGIN_BYTES > 0


def test_space_that_was_reserved_for_staged_batches_is_given_back() -> None:
    """Requests that reserve more than they write do not use up the space of the log."""
    world = world_of(1)
    world.append(0, [0])
    world.sim.free_bytes = 0
    reserved = 0
    while reserved < 16 * MIB:
        assert world.log.has_room(1024), f"no room after {reserved} bytes, of which none was used"
        world.log.append_staged([])
        reserved += 1024


def test_failed_sync_is_final_for_all_stores() -> None:
    """After a failed sync no store of the log takes appends, and their records stay readable."""
    world = world_of(3)
    for number in range(3):
        world.append(number, [10])
    world.sim.fail = lambda operation, path: (
        OSError(errno.EIO, "broken") if operation == "sync" and path.suffix == FILE_SUFFIX else None
    )
    with pytest.raises(StorageFailedError):
        world.stores[1].sync()
    world.sim.fail = lambda operation, path: None
    for number in range(3):
        store = world.stores[number]
        assert store.state == "failed"
        assert not store.has_room(64)
        for write in (store.sync, lambda: append(store, [batch(b"x")]), store.seal, lambda: store.truncate(0)):  # noqa: B023
            with pytest.raises(StorageFailedError):
                write()
        assert read_all(store) == world.models[number].written


def test_failed_log_copies_no_tail() -> None:
    world = world_of(1)
    world.append(0, [10])
    (tail,) = world.log.tails.values()
    world.log.failed("a write", OSError(errno.EIO, "broken"))
    steps = world.sim.steps
    with tail.lock, pytest.raises(StorageFailedError, match="takes no more writes: a write failed"):
        world.log.copy_forward(tail, [], [])
    assert world.sim.steps == steps


def test_stores_append_and_sync_on_several_threads() -> None:
    """Appends, syncs and reads of different stores run at the same time."""
    world = world_of(6)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(150):
                world.append(number, [turn])
                if turn % 5 == 0:
                    world.stores[number].sync()
                assert len(read_all(world.stores[number])) == turn + 1
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    for number in range(6):
        world.stores[number].sync()
    last = SharedWorld(world.sim.restart(), world.models, sizes=ROOMY)
    last.check_recovered()
    last.check()
