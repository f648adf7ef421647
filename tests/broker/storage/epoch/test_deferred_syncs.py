"""Syncs that are owed, of names and of rolled segments: done once, by whoever comes first, and never tried again."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import EPOCH, create, create_log, new_disk, reopen
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.epoch.deferred_syncs import UNSYNCED_SEGMENTS_MAX, DeferredSyncs
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX, begun_path, segment_path
from tidelog_broker.storage.segment.spare import SPARE_NAME
from tidelog_proto.limits import SEGMENT_BYTES_MIN

ROOT = Path("/")
BROKEN = OSError(errno.EIO, "broken")


def rolling_log(disk: Disk) -> EpochLog:
    return create_log(disk, ROOT / "epoch", segment_bytes=SEGMENT_BYTES_MIN)


def roll_once(log: EpochLog) -> None:
    rolled = log.segment_count + 1
    while log.segment_count < rolled:
        append(log, [batch(b"x" * 20_000)])


def count_syncs(sim: SimDisk) -> list[Path]:
    """Note what is synced; of a segment under the name that it begins with, the first time is its header's."""
    synced: list[Path] = []
    made: set[Path] = set()

    def note(operation: str, path: Path) -> OSError | None:
        if operation == "sync" and path.suffix in {SEGMENT_SUFFIX, BEGUN_SUFFIX}:
            if path.suffix == SEGMENT_SUFFIX or path in made:
                synced.append(path)
            made.add(path)
        return None

    sim.fail = note
    return synced


def test_a_rolled_segment_is_synced_once_in_the_background() -> None:
    sim, background = SimDisk(), IoWorkers(1, name="sync")
    log = rolling_log(Disk(sim, syncer=background))
    synced = count_syncs(sim)
    append(log, [batch(b"x")])
    log.sync()
    roll_once(log)
    rolled = begun_path(log.segments[-1].path)
    roll_once(log)
    background.close()
    assert synced.count(rolled) == 1
    log.sync()
    assert synced.count(rolled) == 1
    log.close()
    assert sim.open_files == 0


def test_unsynced_log_syncs_rolled_segments_only_at_the_limit() -> None:
    sim, background = SimDisk(), IoWorkers(1, name="sync")
    log = rolling_log(Disk(sim, syncer=background))
    synced = count_syncs(sim)
    for _ in range(UNSYNCED_SEGMENTS_MAX - 1):
        roll_once(log)
    assert (log._deferred.segment_count, synced) == (UNSYNCED_SEGMENTS_MAX - 1, [])
    roll_once(log)
    background.close()
    assert synced == [log.segments[0].path]
    log.close()
    assert len(set(synced)) == UNSYNCED_SEGMENTS_MAX + 1
    assert sim.open_files == 0


def test_recovery_scans_only_segments_with_a_deferred_sync() -> None:
    sim = SimDisk()
    log = rolling_log(Disk(sim))
    for _ in range(3 * UNSYNCED_SEGMENTS_MAX):
        roll_once(log)
    segments, end_offset = [segment.path for segment in log.segments], log.end_offset
    sim = sim.restart()
    synced = count_syncs(sim)
    log = EpochLog.open(Disk(sim), ROOT / "epoch", segment_bytes=SEGMENT_BYTES_MIN)
    assert (log.state, log.end_offset) == ("active", end_offset)
    assert set(synced) == set(segments[-UNSYNCED_SEGMENTS_MAX - 1 :]), "scanned segments are synced"
    log.close()


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_takes_only_segments_with_a_deferred_sync(seed: int) -> None:
    random = Random(seed)
    sim = SimDisk()
    log = rolling_log(Disk(sim))
    for _ in range(random.randint(1, 3 * UNSYNCED_SEGMENTS_MAX)):
        roll_once(log)
        if random.random() < 0.3 and log.segment_count > 1:
            log.delete_oldest_segment()
    synced_offset, end_offset = log.synced_offset, log.end_offset
    log = EpochLog.open(Disk(sim.power_cut(random)), ROOT / "epoch", segment_bytes=SEGMENT_BYTES_MIN)
    assert log.state == "active", log.damage
    assert synced_offset <= log.end_offset <= end_offset
    log.close()


def test_segments_deleted_by_retention_are_never_synced() -> None:
    sim, background = SimDisk(), IoWorkers(1, name="sync")
    log = rolling_log(Disk(sim, syncer=background))
    synced = count_syncs(sim)
    for _ in range(3 * UNSYNCED_SEGMENTS_MAX):
        roll_once(log)
        if log.segment_count > 2:
            log.delete_oldest_segment()
    background.close()
    assert synced == []
    log.close()
    assert sim.open_files == 0


def test_failed_background_sync_fails_the_next_operation() -> None:
    sim, background = SimDisk(), IoWorkers(1, name="sync")
    log = rolling_log(Disk(sim, syncer=background))
    append(log, [batch(b"x")])
    log.sync()
    roll_once(log)
    failed: list[Path] = []

    def fail(operation: str, path: Path) -> OSError | None:
        if operation == "sync" and path.suffix == ".seg" and not failed:
            failed.append(path)
            return OSError(errno.EIO, "lost")
        return None

    sim.fail = fail
    with suppress(StorageFailedError):  # the thread may be faster than the append behind the roll
        roll_once(log)
    background.close()
    assert failed
    for _ in range(2):
        with pytest.raises(StorageFailedError, match="a background sync"):
            append(log, [batch(b"x")])
    log.close()
    assert sim.open_files == 0


def test_dropped_log_cancels_its_deferred_syncs() -> None:
    sim = SimDisk()
    queue: list[object] = []

    class Later(IoWorkers):
        def offer(self, run: object, *, key: int = 0) -> bool:
            del key
            queue.append(run)
            return True

    log = rolling_log(Disk(sim, syncer=Later()))
    append(log, [batch(b"x")])
    log.sync()
    roll_once(log)
    log.close(sync=False)
    assert queue
    assert sim.open_files == 0
    synced = count_syncs(sim)
    for work in queue:
        assert callable(work)
        work()
    assert synced == []


# ------------------------------------------------------------------------------------ names


def roll(log: EpochLog) -> list[bytes]:
    """Append until another segment has begun."""
    batches: list[bytes] = []
    segments = log.segment_count
    while log.segment_count == segments:
        batches += append(log, [batch(b"x" * 700)])
    return batches


def names(sim: SimDisk) -> list[str]:
    return [Path(name).suffix for name in sim.list_dir(EPOCH) if not name.endswith(".idx")]


def test_deferred_name_sync_runs_once_after_its_preceding_step() -> None:
    sim, done = new_disk(), list[str]()
    sim.make_dir(EPOCH)
    owed = DeferredSyncs(Disk(sim), EPOCH)
    assert not owed
    for name in "ab":
        owed.defer_names_sync(partial(done.append, name))
        assert (bool(owed), done[-1:]) == (True, [] if name == "a" else ["a"])
        owed.sync_names()
        steps = sim.steps
        owed.sync_names()
        assert (bool(owed), done[-1:], sim.steps) == (False, [name], steps)


def test_only_one_change_of_names_is_deferred_at_a_time() -> None:
    sim = new_disk()
    sim.make_dir(EPOCH)
    owed = DeferredSyncs(Disk(sim), EPOCH)
    owed.defer_names_sync()
    with pytest.raises(AssertionError, match="not durable"):
        owed.defer_names_sync()


def test_append_does_not_wait_for_a_name_sync_but_sync_does(tmp_path: Path) -> None:
    disk = FaultyDisk()
    background = IoWorkers(1, name="name")
    log = create_log(Disk(disk, namer=background), tmp_path / "epoch", segment_bytes=4096)
    disk.hold("sync", BEGUN_SUFFIX)
    batches = roll(log)
    batches += append(log, [batch(b"more")])
    assert disk.reached.wait(10)
    assert [path.suffix for path in sorted((tmp_path / "epoch").glob("0*4.*"))] == [BEGUN_SUFFIX]
    assert read_all(log) == batches
    syncing = threading.Thread(target=log.sync)
    syncing.start()
    syncing.join(0.2)
    assert syncing.is_alive(), "something is called durable whose file has no name yet"
    disk.heal()
    syncing.join(10)
    assert [path.suffix for path in sorted((tmp_path / "epoch").glob("0*4.*"))] == [SEGMENT_SUFFIX]
    background.close()
    log.close()


def test_segment_with_temporary_name_survives_a_kill() -> None:
    sim = new_disk()
    log = create(sim)
    batches = roll(log)
    assert names(sim) == [".seg", ".beg"]
    again = reopen(sim.restart())
    assert names(sim) == [".seg", ".seg"]
    assert read_all(again) == batches
    roll(again)
    assert not any(len(sim.node(path).durable) == 0 for path in sim.files(EPOCH, SEGMENT_SUFFIX)), "a name came first"


@pytest.mark.parametrize("seed", range(20))
def test_segment_without_header_is_removed(seed: int) -> None:
    """The power fails before the header is on the disk: all synced records survive, and the log continues."""
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"first")])
    log.sync()
    roll(log)
    sim = sim.power_cut(Random(seed))
    again = reopen(sim)
    assert again.state == "active", again.damage
    assert read_all(again)[:1] == batches
    assert BEGUN_SUFFIX not in names(sim)
    append(again, [batch(b"next")])


@pytest.mark.parametrize("seed", range(10))
def test_power_loss_while_a_start_renames_a_segment_loses_nothing_synced(seed: int) -> None:
    for cut in range(12):
        sim = new_disk()
        log = create(sim)
        batches = append(log, [batch(b"first")])
        log.sync()
        roll(log)
        sim = sim.restart()
        sim.cut_at = cut
        with suppress(PowerCutError):
            reopen(sim)
        again = reopen(sim.power_cut(Random(seed)))
        assert again.state == "active", again.damage
        assert read_all(again)[:1] == batches


def test_reused_file_with_its_old_header_is_not_a_segment() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"first")])
    log.close()
    header = bytes(sim.node(segment_path(EPOCH, 0)).current)
    begun = begun_path(segment_path(EPOCH, 77))
    with_another = sim.open(begun, create=True)
    with_another.pwritev([header], 0)
    with_another.close()
    assert read_all(reopen(sim)) == batches
    assert not sim.exists(begun)


def test_temporary_file_beside_its_segment_is_removed() -> None:
    """As when the directory of a running node was copied in two goes."""
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"first")])
    log.close()
    path = segment_path(EPOCH, 0)
    stale = sim.open(begun_path(path), create=True)
    stale.pwritev([bytes(sim.node(path).current[:128])], 0)
    stale.close()
    assert read_all(reopen(sim)) == batches
    assert not sim.exists(begun_path(path))


@pytest.mark.parametrize("operation", ["sync", "rename", "sync_dir"])
def test_failed_background_sync_is_kept_and_never_retried(operation: str) -> None:
    sim, background = new_disk(), IoWorkers(1, name="name")
    log = create_log(Disk(sim, namer=background), EPOCH, segment_bytes=4096)
    append(log, [batch(b"x" * 3900)])
    sim.fail = lambda what, path: BROKEN if what == operation and path.suffix != ".idx" else None
    log.ensure_space(3000)
    background.close()
    sim.fail = lambda what, path: None
    with pytest.raises(StorageFailedError, match="broken"):
        log.sync_names()
    with pytest.raises(StorageFailedError, match=r"background.*broken"):
        log.ensure_space(10)
    assert log.state == "failed"
    log.close()
    assert sim.open_files == 0


def test_deletion_first_completes_the_pending_change_of_names() -> None:
    """Without this a crash may bring back an older segment alone, or leave only a file without a header."""
    sim = new_disk()
    log = create(sim)
    for _ in range(3):
        roll(log)
    assert names(sim) == [".seg", ".seg", ".seg", ".beg"]
    log.delete_oldest_segment()
    assert names(sim) == [".seg", ".seg", ".seg", ".new"]
    steps: list[str] = []
    sim.fail = lambda operation, path: steps.append(operation)
    log.delete_oldest_segment()
    assert steps[0] == "sync_dir"


def test_file_is_reused_only_after_its_old_name_is_durably_removed() -> None:
    sim = new_disk()
    log = create(sim)
    roll(log)
    roll(log)
    log.delete_oldest_segment()
    assert sim.exists(EPOCH / SPARE_NAME)
    steps: list[tuple[str, str]] = []
    sim.fail = lambda operation, path: steps.append((operation, path.suffix))
    roll(log)
    assert steps.index(("sync_dir", "")) < steps.index(("rename", BEGUN_SUFFIX))


def test_closed_log_is_not_accessed_in_the_background() -> None:
    sim = new_disk()
    log = create(sim)
    roll(log)
    log.close(sync=False)
    steps = sim.steps
    log.sync_names()
    assert sim.steps == steps
    assert sim.open_files == 0
