"""Recovery of the commit log after a crash at any step (S1), and after damage in any record (S3)."""

from __future__ import annotations

import copy
import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import read_all
from tests.broker.storage.commit_log.shared_world import LOG_DIR, SharedWorld, random_steps
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.commit_log.commit_log import Sizes
from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    FILE_SUFFIX,
    FoundRecord,
    Kind,
    records_in,
    unpack_file_header,
)
from tidelog_broker.storage.commit_log.snapshot import SNAPSHOT_SUFFIX
from tidelog_broker.storage.commit_log.store_identity import FILE_NAME, read_identity
from tidelog_broker.storage.commit_log.tidying import Tidying
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError
from tidelog_proto.limits import MIB

PLAIN = Sizes(file_bytes=2048, chunk_bytes=2048, log_bytes_min=64 * MIB, tail_bytes_max=2048)
"""Nothing is copied or deleted."""


def run(seed: int, cut_at: int | None, count: int = 60) -> SharedWorld:
    random = Random(f"shared {seed}")
    world = SharedWorld(new_disk())
    world.sim.cut_at = cut_at
    with suppress(PowerCutError):
        random_steps(world, random, count)
    return world


def without_snapshots(world: SharedWorld) -> SharedWorld:
    """Return a copy of a world whose log has no snapshots, so that all of it is read, and its older files are gone."""
    sim = world.sim.copy()
    for path in sim.files(LOG_DIR, SNAPSHOT_SUFFIX) if sim.exists(LOG_DIR) else ():
        sim.unlink(path)
    return SharedWorld(sim, {number: copy.copy(model) for number, model in world.models.items()})


@pytest.mark.parametrize("seed", range(12))
def test_every_store_recovers_a_prefix_with_everything_synced(seed: int) -> None:
    """After a crash at any step, each store has what was synced, takes appends, and survives another crash."""
    steps = run(seed, None).sim.steps
    random = Random(f"crash {seed}")
    for cut_at in range(random.randrange(3), steps, 3):
        crashed = run(seed, cut_at)
        # The power cut first: it leaves a copy of the disk, and a killed process leaves the disk itself.
        for power in (True, False):
            check_after_crash(crashed, random, power=power)


def check_after_crash(crashed: SharedWorld, random: Random, *, power: bool) -> None:
    """Recover all stores after a crash, append to them, and recover them again after another."""
    world = crashed.after_crash(random, power=power)
    without_snapshots(world).check_recovered()
    world.check_recovered()
    world.check()
    for number in list(world.models):
        if world.stores[number].state == "active":
            world.append(number, [50, 700], b"later")
    active = [number for number, store in world.stores.items() if store.state == "active"]
    if active:
        world.sync(random.choice(active))
    world.check()
    last = world.after_crash(random, power=power)
    last.check_recovered()
    last.check()


# ------------------------------------------------------------------------------------------ damage


def log_records(sim: SimDisk) -> Iterator[tuple[Path, int, FoundRecord]]:
    """Yield all records of the log: the file, the position of the record in the log, and the record."""
    for path in sim.files(LOG_DIR, FILE_SUFFIX):
        data = bytes(sim.node(path).current)
        header = unpack_file_header(data)
        for found in records_in(data, FILE_HEADER_BYTES, nonce=header.nonce, base=header.base):
            yield path, header.base + found.at, found


def damaged(sim: SimDisk, path: Path, at: int, size_bytes: int, random: Random) -> SimDisk:
    """Return a copy of a disk with some bytes of a file changed."""
    changed = sim.copy()
    node = changed.node(path)
    content = bytearray(node.current)
    if random.random() < 0.5:
        content[at + random.randrange(size_bytes)] ^= 1 << random.randrange(8)
    else:
        content[at : at + size_bytes] = bytes(size_bytes)
    node.current, node.durable = content, bytes(content)
    return changed


def written_world(seed: int) -> SharedWorld:
    """Return a world whose stores have records in the log, all of them appended and synced."""
    random = Random(f"damage {seed}")
    world = SharedWorld(new_disk(), sizes=PLAIN)
    for number in range(4):
        world.create(number)
    for _ in range(40):
        number = random.randrange(4)
        match random.choice(["append"] * 6 + ["sync", "truncate", "roll"]):
            case "append":
                world.append(number, [random.choice([0, 10, 100]) for _ in range(random.randint(1, 3))])
            case "truncate" if len(world.models[number].written) > 3:
                world.truncate(number, len(world.models[number].written) - 2)
            case "roll":
                world.stores[number].roll()
            case _:
                world.sync(number)
    return world


def check_neighbours(world: SharedWorld, ids: dict[int, int], owner: int) -> None:
    """Open all stores: those that do not own the damaged record are whole; the owner has a prefix or is in LIMBO."""
    for number, model in world.models.items():
        store = world.open(number)
        if ids[number] != owner:
            assert store.damage is None, (number, store.damage)
            assert read_all(store) == model.written, number
        else:
            found = read_all(store)
            assert found == model.written[: len(found)]
            assert found == model.written or store.state == "limbo"


@pytest.mark.parametrize("seed", range(4))
def test_damage_in_one_record_costs_only_its_store(seed: int) -> None:
    """After a clean stop, damage anywhere in a record puts its store into LIMBO or costs nothing (S3)."""
    world = written_world(seed)
    for store in world.stores.values():
        store.close()
    ids = {number: read_identity(world.sim, world.directory(number)).store for number in world.models}
    for path in world.sim.files(LOG_DIR, SNAPSHOT_SUFFIX):
        world.sim.unlink(path)  # Records before a snapshot are not read at a start.
    random = Random(f"damage at {seed}")
    for path, _, found in log_records(world.sim):
        sim = damaged(world.sim, path, found.at, found.size_bytes, random)
        check_neighbours(SharedWorld(sim, world.models, sizes=PLAIN), ids, found.store)


@pytest.mark.parametrize("seed", range(2))
def test_damage_after_a_crash_costs_no_neighbour(seed: int) -> None:
    """Without a last mark, damage in the last group looks like a torn write, and still costs only its store."""
    world = written_world(seed)
    world.sync(0)
    ids = {number: read_identity(world.sim, world.directory(number)).store for number in world.models}
    for path in world.sim.files(LOG_DIR, SNAPSHOT_SUFFIX):
        world.sim.unlink(path)
    random = Random(f"damage after {seed}")
    for path, _, found in log_records(world.sim):
        again = SharedWorld(damaged(world.sim, path, found.at, found.size_bytes, random), world.models, sizes=PLAIN)
        for number, model in world.models.items():
            store = again.open(number)
            if ids[number] != found.store:
                assert (store.damage, read_all(store)) == (None, model.written), number
            else:
                kept = read_all(store)
                assert kept == model.written[: len(kept)]


@pytest.mark.parametrize("seed", range(3))
def test_damaged_file_header_or_snapshot_costs_nothing(seed: int) -> None:
    """The log is recognized by its other files, or by its records; without a snapshot all of it is read."""
    world = written_world(seed)
    for store in world.stores.values():
        store.close()
    random = Random(f"damaged header {seed}")
    paths = [*world.sim.files(LOG_DIR, FILE_SUFFIX), *world.sim.files(LOG_DIR, SNAPSHOT_SUFFIX)]
    for path in paths:
        again = SharedWorld(damaged(world.sim, path, 0, FILE_HEADER_BYTES, random), world.models, sizes=PLAIN)
        for number, model in world.models.items():
            store = again.open(number)
            assert (store.damage, read_all(store)) == (None, model.written), (path, number)


def test_log_without_any_valid_header_is_recognized_by_its_records() -> None:
    """The only file of a log, whose header is damaged, is not taken for an empty one."""
    world = SharedWorld(new_disk())
    world.create(0)
    world.append(0, [10])
    world.stores[0].close()
    (path,) = world.sim.files(LOG_DIR, FILE_SUFFIX)
    sim = damaged(world.sim, path, 0, FILE_HEADER_BYTES, Random(1))
    again = SharedWorld(sim, world.models)
    assert read_all(again.open(0)) == world.models[0].written


def test_intact_log_is_opened_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    world = SharedWorld(new_disk())
    world.create(0)
    for _ in range(20):
        world.append(0, [500])
    world.sync(0)
    assert len(world.log.files.all) > 1
    SharedWorld(world.sim.restart(), world.models).check_recovered()
    assert not caplog.records


def test_file_under_another_name_is_not_trusted(caplog: pytest.LogCaptureFixture) -> None:
    """The header of a file names its position: a file that was renamed is treated as one with a damaged header."""
    world = SharedWorld(new_disk())
    world.create(0)
    world.append(0, [10])
    world.sync(0)
    (name,) = [name for name in world.sim.list_dir(LOG_DIR) if name.endswith(FILE_SUFFIX)]
    again = world.sim.restart()
    again.rename(LOG_DIR / name, LOG_DIR / f"{int(name.removesuffix(FILE_SUFFIX)) + 64:020d}{FILE_SUFFIX}")
    with pytest.raises(DamagedError, match="no valid header and no valid record"):
        SharedWorld(again, world.models).open(0)
    assert not caplog.records


def test_files_of_others_in_the_directory_of_the_log_are_ignored() -> None:
    world = SharedWorld(new_disk())
    world.create(0)
    world.append(0, [10])
    world.sync(0)
    again = world.sim.restart()
    for name in (f"notes{FILE_SUFFIX}", "1234"):
        again.open(LOG_DIR / name, create=True).close()
    SharedWorld(again, world.models).check_recovered()
    assert {f"notes{FILE_SUFFIX}", "1234"} <= set(again.list_dir(LOG_DIR))


def test_stores_are_in_limbo_if_the_log_is_lost() -> None:
    """A missing commit log is not taken for one without records."""
    world = SharedWorld(new_disk())
    world.create(0)
    world.append(0, [10])
    world.stores[0].close()
    for name in world.sim.list_dir(LOG_DIR):
        world.sim.unlink(LOG_DIR / name)
    store = SharedWorld(world.sim.restart(), world.models).open(0)
    assert store.damage is not None
    assert (store.state, store.end_offset) == ("limbo", 0)
    store.truncate_to_valid_prefix()
    assert (store.state, store.is_repairing) == ("limbo", True)


# ------------------------------------------------------------------------------------------ missing files


@pytest.mark.parametrize("seed", [3, 9, 10])
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_missing_file_costs_no_record_silently(with_snapshots: bool, seed: int) -> None:
    """A store that may have had records in a missing file, not the newest, is in LIMBO; the others are whole."""
    random = Random(f"missing file {seed}")
    world = SharedWorld(new_disk())
    for number in range(4):
        world.create(number)
    for _ in range(60):
        number = random.randrange(4)
        world.append(number, [random.randint(100, 300)])
        world.sync(number)
    for store in world.stores.values():
        store.close()
    if not with_snapshots:
        world = without_snapshots(world)
    paths = world.sim.files(LOG_DIR, FILE_SUFFIX)
    assert len(paths) > 2
    for path in paths[:-1]:
        sim = world.sim.copy()
        sim.unlink(path)
        again = SharedWorld(sim, world.models)
        for number, model in world.models.items():
            store = again.open(number)
            found = read_all(store)
            assert found == model.written[: len(found)]
            assert store.state == "limbo" or found == model.written
        third = SharedWorld(sim, world.models)
        for number in world.models:
            assert third.open(number).state == again.stores[number].state
            if third.stores[number].state == "limbo":
                third.stores[number].truncate_to_valid_prefix()
                third.stores[number].finish_repair()
            assert third.stores[number].state == "active"
        fourth = SharedWorld(sim.restart(), world.models)
        assert {fourth.open(number).state for number in world.models} == {"active"}


def test_file_that_ends_within_a_batch_puts_its_store_into_limbo() -> None:
    """A batch that a snapshot lists and that its file has only a part of is not taken for a record."""
    world = SharedWorld(new_disk())
    world.create(0)
    for _ in range(2):
        world.append(0, [100])
    Tidying(world.sim, world.log).save_snapshot()
    for store in world.stores.values():
        store.close()
    batches = [(path, found) for path, _, found in log_records(world.sim) if found.kind == Kind.BATCH]
    path, found = batches[1]
    node = world.sim.node(path)
    del node.current[found.at + 40 :]
    node.durable = bytes(node.current)
    store = SharedWorld(world.sim.restart(), world.models).open(0)
    assert (store.state, store.end_offset, read_all(store)) == ("limbo", 1, world.models[0].written[:1])


def test_records_that_a_crash_has_left_without_a_mark_get_one() -> None:
    """The first mark after a crash covers what recovery has made durable, so later damage there is no torn write."""
    world = SharedWorld(new_disk())
    for number in range(2):
        world.create(number)
    world.append(0, [10])
    world.append(0, [20])
    world.sync(0)
    again = world.after_crash(Random(1), power=True)
    again.check_recovered()
    still = SharedWorld(again.sim.copy(), again.models)
    still.check_recovered()
    for store in still.stores.values():
        store.close()  # Nothing was appended.
    again.append(1, [10])
    again.sync(1)
    for stopped in (again, still):
        batches = [(path, found) for path, _, found in log_records(stopped.sim) if found.kind == Kind.BATCH]
        path, found = batches[1]
        damage = damaged(stopped.sim, path, found.at, found.size_bytes, Random(2))
        store = SharedWorld(damage, world.models).open(0)
        assert (store.state, store.end_offset) == ("limbo", 1)


# ------------------------------------------------------------------------------------------ failed syncs


def failing_sync(number: int) -> Callable[[str, Path], OSError | None]:
    """Let the sync of the commit log with this number fail."""
    syncs = 0

    def fail(operation: str, path: Path) -> OSError | None:
        nonlocal syncs
        is_sync = operation == "sync" and path.parent == LOG_DIR
        syncs += is_sync
        return OSError(errno.EIO, "broken") if is_sync and syncs == number else None

    return fail


@pytest.mark.parametrize("seed", range(6))
def test_records_after_a_failed_sync_are_rewritten(seed: int) -> None:
    """After a failed sync the log takes no writes; a later process makes durable what it still reads (ADR 0051)."""
    random = Random(f"failed sync {seed}")
    for fail_at in range(5, 60, 5):
        world = SharedWorld(new_disk())
        world.sim.fail = failing_sync(fail_at)
        try:
            random_steps(world, Random(f"{seed} {fail_at}"), 80)
        except StorageFailedError:
            for store in world.stores.values():
                if store.sync_group is not None:
                    assert store.state == "failed"
        again = world.after_crash(random, power=False)
        for number in [one for one in again.models if FILE_NAME not in again.sim.list_dir(again.directory(one))]:
            del again.models[number]
        again.check_recovered()
        last = again.after_crash(random, power=True)
        last.check_recovered()


def test_kinds_are_distinct() -> None:
    """The worlds above contain the kinds of records that a log has without copies."""
    kinds = {found.kind for _, _, found in log_records(written_world(0).sim)}
    assert kinds >= {Kind.BATCH, Kind.MARK, Kind.STATE, Kind.CUT}
