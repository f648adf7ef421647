"""The store of the shared file model: its tail moves to segments, and its directory becomes a segment engine's."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.commit_log.shared_world import SEGMENT_BYTES, SharedWorld
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError

from tidelog_broker.storage.commit_log.commit_log import CommitLog, Sizes
from tidelog_broker.storage.directory.engine_marker import marked_engine
from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.engine.store import SEGMENT, SHARED
from tidelog_broker.storage.engines.stores import open_store
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DiskFullError, LimboError, StorageFailedError
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX
from tidelog_proto.limits import KIB, MIB

SIZES = Sizes(file_bytes=256 * KIB, chunk_bytes=64 * KIB, log_bytes_min=MIB, tail_bytes_max=MIB)


def world_with(records: int) -> SharedWorld:
    world = SharedWorld(new_disk(), sizes=SIZES)
    for number in range(2):
        world.create(number)
        for _ in range(records):
            world.append(number, [100])
    world.sync(0)
    return world


def spoil(world: SharedWorld, number: int, slot: int) -> None:
    """Change a byte of the body of a batch in the commit log."""
    (tail,) = [tail for tail in world.log.tails.values() if tail.start.partition == number]
    position = tail.entries.positions[slot]
    with world.log.files.lease(position) as held:
        node = world.sim.node(held.path)
        node.current[position - held.base + 140] ^= 1


def test_closed_store_is_not_synced() -> None:
    world = world_with(1)
    world.stores[0].close()
    with pytest.raises(StorageFailedError, match="takes no more writes: the store is closed"):
        world.stores[0].sync()
    assert world.stores[1].sync() == 1, "the log itself has not failed"


def test_segment_whose_creation_was_interrupted_is_removed() -> None:
    world = world_with(1)
    directory = world.directory(0)
    sim = world.sim.restart()
    sim.open(directory / f"{0:020d}{BEGUN_SUFFIX}", create=True).close()
    again = SharedWorld(sim, world.models, sizes=SIZES)
    again.check_recovered()
    assert not sim.files(directory, BEGUN_SUFFIX)


def test_sealed_epoch_is_one_of_the_segment_engine() -> None:
    """After `seal` the directory has segments only, and the log has no record of the store."""
    world = world_with(10)
    store, directory = world.stores[0], world.directory(0)
    assert (store.engine, marked_engine(world.sim.list_dir(directory))) == (SHARED, SHARED)
    assert len(world.log.tails) == 2
    world.seal(0)
    assert (store.state, store.engine, store.sync_group) == ("sealed", SEGMENT, None)
    assert read_all(store) == world.models[0].written
    assert len(world.log.tails) == 1
    names = world.sim.list_dir(directory)
    assert marked_engine(names) == SEGMENT
    assert all(name.endswith((".seg", ".idx")) for name in names)
    opened = open_store(world.disk, directory, segment_bytes=SEGMENT_BYTES, sealed_end_offset=10)
    assert isinstance(opened, EpochLog)
    assert read_all(opened) == world.models[0].written


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("what", ["seal", "roll", "detach", "truncate"])
def test_crash_at_any_step_of_a_move_costs_nothing(what: str, power: bool) -> None:
    """A crash at any step of a seal, a roll, a setting aside or a truncation into the segments leaves all records."""
    cut_at, is_done = 0, False
    while not is_done:
        world = world_with(10)
        if what == "truncate":
            world.stores[0].roll()
            world.append(0, [5, 5])
            world.sync(0)
        model = world.models[0]
        world.sim.cut_at = world.sim.steps + cut_at
        try:
            match what:
                case "seal":
                    world.seal(0)
                case "roll":
                    world.stores[0].roll()
                case "detach":
                    world.stores[0].detach()
                case _:
                    world.truncate(0, 4)
            is_done = True
        except PowerCutError:
            cut_at += 1
            if what == "truncate":
                model.floor = 4
        again = world.after_crash(Random(f"{what} {cut_at}"), power=power)
        again.check_recovered()
        assert len(again.models[1].written) == 10
        if again.stores[0].state == "active":
            again.append(0, [7])
            again.sync(0)
        again.check()
    assert cut_at > 3


def test_damage_of_a_tail_is_found_when_it_is_written_out() -> None:
    """The store goes into LIMBO before the damaged batch, nothing is written, and the neighbour goes on."""
    world = world_with(10)
    spoil(world, 0, 6)
    store = world.stores[0]
    with pytest.raises(LimboError):
        store.roll()
    assert (store.state, store.end_offset) == ("limbo", 6)
    assert store.damage is not None
    assert store.damage.synced_offset == 10
    assert read_all(store) == world.models[0].written[:6]
    with pytest.raises(LimboError):
        append(store, [batch()])
    world.append(1, [1])
    world.sync(1)
    assert world.stores[1].roll()
    again = SharedWorld(world.sim.restart(), world.models, sizes=SIZES)
    reopened = again.open(0)
    assert (reopened.state, reopened.end_offset) == ("limbo", 6)
    reopened.truncate_to_valid_prefix()
    rest = append(reopened, [batch(b"other") for _ in range(4)])
    reopened.finish_repair()
    assert (reopened.state, read_all(reopened)) == ("active", world.models[0].written[:6] + rest)


def test_store_that_is_set_aside_leaves_what_can_be_read() -> None:
    """The directory then has the records before the damage, and the log has no record of the store."""
    world = world_with(10)
    spoil(world, 0, 6)
    world.stores[0].detach()
    world.stores[0].close(sync=False)
    assert len(world.log.tails) == 1
    opened = open_store(world.disk, world.directory(0), segment_bytes=SEGMENT_BYTES)
    assert isinstance(opened, EpochLog)
    assert read_all(opened) == world.models[0].written[:6]


def test_tail_is_written_to_segments_when_it_is_large() -> None:
    """A partition that writes much has segment files of the usual size, and a short tail."""
    world = SharedWorld(new_disk(), sizes=SIZES._replace(tail_bytes_max=2 * KIB))
    world.create(0)
    for _ in range(60):
        world.append(0, [300])
        assert world.log.tails[next(iter(world.log.tails))].size_bytes < 4 * KIB
    store = world.stores[0]
    assert store.segment_count > 3
    assert store.oldest_end_offset == store.segments[0].end_offset
    freed = store.delete_oldest_segment()
    assert freed > 0
    del world.models[0].written[: store.start_offset]
    world.check()


def test_log_forgets_a_store_whose_directory_is_removed() -> None:
    """Its records do not hold a file any more, also after a restart."""
    world = world_with(3)
    world.remove(0)
    assert len(world.log.tails) == 1
    again = SharedWorld(world.sim.power_cut(Random(1)), world.models, sizes=SIZES)
    again.check_recovered()
    assert len(again.log.tails) == 1
    assert isinstance(again.log, CommitLog)


def test_store_that_cannot_be_created_leaves_nothing_in_the_log() -> None:
    """If any step of a creation finds no space, the log does not keep a record of the store."""
    refused = 0
    for fail_at in range(40):
        world = world_with(1)
        steps = 0

        def full(operation: str, path: Path) -> OSError | None:
            nonlocal steps
            steps += 1
            del operation, path
            return OSError(errno.ENOSPC, "full") if steps == fail_at else None  # noqa: B023

        world.sim.fail = full
        try:
            world.create(2)
        except DiskFullError:
            refused += 1
            del world.models[2]
            assert len(world.log.tails) == 2
        except StorageFailedError:  # A sync has failed, or the directory has its name already.
            del world.models[2]
        last = world.after_crash(Random(fail_at), power=True)
        last.check_recovered()
    assert refused > 5


@pytest.mark.parametrize("engine", [SHARED, SEGMENT])
def test_truncation_at_the_end_of_a_repair_makes_the_repair_durable(engine: str) -> None:
    """Records that were appended during a repair are synced before a truncation at their end ends the repair."""
    world = world_with(3)
    if engine == SEGMENT:
        world.seal(0)
        world.open(0)
        world.stores[0].truncate(2)
        assert world.stores[0].state == "active"
        (path,) = world.sim.files(world.directory(0), SEGMENT_SUFFIX)
        node = world.sim.node(path)
        at = bytes(node.current).index(b"x" * 100, bytes(node.current).index(b"x" * 100) + 100)
    else:
        world.stores[0].close()
        (tail,) = [tail for tail in world.log.tails.values() if tail.start.partition == 0]
        with world.log.files.lease(tail.entries.positions[1]) as held:
            node, at = world.sim.node(held.path), tail.entries.positions[1] - held.base + 140
    world.stores[0].close(sync=False)
    node.current[at] ^= 1
    node.durable = bytes(node.current)
    again = SharedWorld(world.sim.restart(), world.models, sizes=SIZES)
    again.models[0].ended = None
    store = again.open(0)
    assert (store.engine, store.state, store.end_offset) == (engine, "limbo", 1)
    store.truncate_to_valid_prefix()
    appended = append(store, [batch(b"repaired")])
    store.truncate(2)
    assert (store.state, store.synced_offset) == ("active", 2)
    for seed in range(6):
        last = SharedWorld(again.sim.power_cut(Random(seed)), again.models, sizes=SIZES)
        assert read_all(last.open(0))[1:] == appended
