"""Snapshots, copies of tails and deletion of files: a file goes only when everything alive in it is elsewhere (S2)."""

from __future__ import annotations

import copy
import errno
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import read_all
from tests.broker.storage.commit_log.shared_world import LOG_DIR, SIZES, SharedWorld, random_steps
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.commit_log.records import FILE_SUFFIX, Boundary
from tidelog_broker.storage.commit_log.snapshot import SNAPSHOT_SUFFIX
from tidelog_broker.storage.commit_log.store_identity import read_identity
from tidelog_broker.storage.commit_log.tidying import Tidying
from tidelog_proto.limits import MIB


def busy_world(seed: int, random: Random) -> SharedWorld:
    """Return a world with one busy store and three that have a few old records."""
    world = SharedWorld(new_disk())
    for number in range(4):
        world.create(number)
        world.append(number, [10 * number, seed])
    world.sync(0)
    for _ in range(random.randint(20, 60)):
        world.append(0, [random.randint(200, 700)])
    return world


@pytest.mark.parametrize("seed", range(8))
def test_file_is_deleted_only_when_its_records_are_durable_elsewhere(seed: int) -> None:
    """When a file's name is removed, a power cut at this moment costs no synced record of any store."""
    random = Random(f"deletion {seed}")
    world = SharedWorld(new_disk())
    deletions = 0

    def look(operation: str, path: Path) -> OSError | None:
        nonlocal deletions
        if operation == "unlink" and path.suffix == FILE_SUFFIX:
            deletions += 1
            names = world.sim.directory(LOG_DIR).names
            gone = names.pop(path.name)
            cut = world.sim.power_cut(random)
            names[path.name] = gone
            models = {number: copy.copy(model) for number, model in world.models.items() if model.exists}
            SharedWorld(cut, {number: one for number, one in models.items() if not one.is_removed}).check_recovered()
        return None

    world.sim.fail = look
    random_steps(world, random, 150)
    assert deletions > 3


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_tidying_may_end_at_any_step(seed: int, power: bool) -> None:
    """A crash at any step of a snapshot, a copy or a deletion costs no synced record."""
    random = Random(f"tidying {seed}")
    cut_at, is_done = 0, False
    while not is_done:
        world = busy_world(seed, Random(f"busy {seed}"))
        world.sync(0)
        world.sim.cut_at = world.sim.steps + cut_at
        try:
            Tidying(world.sim, world.log).run()
            is_done = True
        except PowerCutError:
            cut_at += 1
        again = world.after_crash(random, power=power)
        again.check_recovered()
        for number, model in again.models.items():
            again.append(number, [5])
            assert read_all(again.stores[number]) == model.written
    assert cut_at > 5


def test_store_that_writes_little_does_not_hold_a_file() -> None:
    """The tails of idle stores are copied to the end of the log, whose size stays bounded."""
    world = busy_world(1, Random("bounded"))
    for _ in range(400):
        world.append(0, [500])
    assert world.log.files.size_bytes < 4 * SIZES.log_bytes_min
    assert len(world.sim.files(LOG_DIR, SNAPSHOT_SUFFIX)) == 2
    world.check()


def test_failed_log_is_not_tidied(caplog: pytest.LogCaptureFixture) -> None:
    world = busy_world(4, Random("failed"))
    world.log.failed("a write", OSError(errno.EIO, "broken"))
    steps = world.sim.steps
    Tidying(world.sim, world.log).run()
    assert world.sim.steps == steps
    assert not caplog.records, "the failure was reported when it happened"


def test_damaged_tail_keeps_its_file() -> None:
    """A tail that cannot be read is not copied, and its file is not deleted."""
    world = busy_world(2, Random("kept"))
    tails = list(world.log.tails.values())
    (tail,) = [tail for tail in tails if tail.start.partition == 2]
    with world.log.files.lease(tail.entries.positions[0]) as held:
        node = world.sim.node(held.path)
        at = tail.entries.positions[0] - held.base + 130
        node.current[at] ^= 1
        node.durable = bytes(node.current)
    for _ in range(200):
        world.append(0, [500])
    assert world.sim.exists(held.path)
    for number in (0, 1, 3):
        assert read_all(world.stores[number]) == world.models[number].written


def test_reader_of_a_tail_that_is_copied_reads_on() -> None:
    """A reader that has looked up batches in a file that is deleted then reads their copies."""
    world = busy_world(3, Random("reader"))
    reader = world.stores[1].reader
    extents = reader.extents(0, world.stores[1].end_offset)
    first = next(extents)
    before = world.log.files.all[0].path
    for _ in range(200):
        world.append(0, [500])
    assert not world.sim.exists(before)
    assert list(map(bytes, first.read(first.first, first.stop))) == world.models[1].written
    assert read_all(world.stores[1]) == world.models[1].written


def test_file_is_deleted_only_after_the_records_that_replace_its_own_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut that is recorded while the tidying syncs is not counted before another sync has covered it."""
    world = SharedWorld(new_disk())
    world.create(0)
    world.create(1)
    tidying = Tidying(world.sim, world.log)
    world.log.tidy = lambda: None
    world.append(0, [100, 100])
    world.stores[0].roll()
    world.append(0, [100, 100])
    for _ in range(8):
        world.append(1, [600])
        world.stores[1].roll()
    world.sync(0)
    world.models[0].floor = 0
    tail, synced = world.log.tails[read_identity(world.sim, world.directory(0)).store], world.log.sync
    world.log.sizes = world.log.sizes._replace(log_bytes_min=64 * MIB)
    tidying.save_snapshot()

    def sync() -> None:
        synced()
        monkeypatch.undo()
        with tail.lock:
            world.log.cut(tail, Boundary(0, 0))

    monkeypatch.setattr(world.log, "sync", sync)
    tidying.delete_unused()
    for seed in range(10):
        again = SharedWorld(world.sim.power_cut(Random(seed)), {0: copy.copy(world.models[0])})
        store = again.open(0)
        assert read_all(store) in ([], world.models[0].written)
        assert store.damage is None


def test_old_snapshot_is_not_used_without_the_files_after_it() -> None:
    """If the newest snapshot is damaged and files after the older one are deleted, what is left of the log is read."""
    world = SharedWorld(new_disk())
    world.create(0)
    world.create(1)
    tidying = Tidying(world.sim, world.log)
    world.log.tidy = lambda: None
    world.append(0, [100])
    world.append(1, [100])
    tidying.save_snapshot()
    world.append(0, [100])
    world.stores[0].roll()
    world.remove(1)
    for _ in range(8):
        world.append(0, [600])
        world.stores[0].roll()
    world.append(0, [100])
    tidying.run()
    world.stores[0].close()
    older, newest = world.sim.files(LOG_DIR, SNAPSHOT_SUFFIX)
    assert int(older.stem) < int(world.sim.files(LOG_DIR, FILE_SUFFIX)[0].stem)
    node = world.sim.node(newest)
    node.current[70] ^= 1
    node.durable = bytes(node.current)
    again = SharedWorld(world.sim.restart(), world.models)
    store = again.open(0)
    assert (store.damage, read_all(store)) == (None, world.models[0].written)
    assert len(again.log.tails) == 1
