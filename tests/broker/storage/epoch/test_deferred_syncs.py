"""The sync that a rolled segment still owes: done once, by whoever comes first, and never tried again."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import PARTITION, TOPIC_ID, append, batch
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.epoch.deferred_syncs import UNSYNCED_SEGMENTS_MAX
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.background import Background
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import BEGUN_SUFFIX, SEGMENT_SUFFIX, begun_path
from tidelog_proto.limits import SEGMENT_BYTES_MIN

ROOT = Path("/")


def rolling_log(disk: Disk) -> EpochLog:
    return EpochLog.create(
        disk,
        ROOT / "epoch",
        topic_id=TOPIC_ID,
        partition=PARTITION,
        epoch=0,
        start_offset=0,
        segment_bytes=SEGMENT_BYTES_MIN,
    )


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
    sim, background = SimDisk(), Background("sync")
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


def test_a_log_that_nobody_syncs_leaves_its_segments_to_the_kernel_until_as_many_are_owed_as_may_be() -> None:
    sim, background = SimDisk(), Background("sync")
    log = rolling_log(Disk(sim, syncer=background))
    synced = count_syncs(sim)
    for _ in range(UNSYNCED_SEGMENTS_MAX - 1):
        roll_once(log)
    assert (len(log._unsynced), synced) == (UNSYNCED_SEGMENTS_MAX - 1, [])
    roll_once(log)
    background.close()
    assert synced == [log.segments[0].path]
    log.close()
    assert len(set(synced)) == UNSYNCED_SEGMENTS_MAX + 1
    assert sim.open_files == 0


def test_after_a_crash_no_more_is_looked_at_than_what_was_owed() -> None:
    sim = SimDisk()
    log = rolling_log(Disk(sim))
    for _ in range(3 * UNSYNCED_SEGMENTS_MAX):
        roll_once(log)
    segments, end_offset = [segment.path for segment in log.segments], log.end_offset
    sim = sim.restart()
    synced = count_syncs(sim)
    log = EpochLog.open(Disk(sim), ROOT / "epoch", segment_bytes=SEGMENT_BYTES_MIN)
    assert (log.state, log.end_offset) == ("active", end_offset)
    assert set(synced) == set(segments[-UNSYNCED_SEGMENTS_MAX - 1 :]), "what is walked is synced"
    log.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_takes_no_more_than_what_was_owed(seed: int) -> None:
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


def test_what_retention_deletes_is_never_synced() -> None:
    sim, background = SimDisk(), Background("sync")
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


def test_a_failed_sync_in_the_background_stops_the_log_at_its_next_step() -> None:
    sim, background = SimDisk(), Background("sync")
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
    with contextlib.suppress(StorageFailedError):  # the thread may be faster than the append behind the roll
        roll_once(log)
    background.close()
    assert failed
    for _ in range(2):
        with pytest.raises(StorageFailedError, match="in the background"):
            append(log, [batch(b"x")])
    log.close()
    assert sim.open_files == 0


def test_a_log_that_is_dropped_owes_nothing_more() -> None:
    sim = SimDisk()
    queue: list[object] = []

    class Later(Background):
        def request(self, work: object) -> bool:
            queue.append(work)
            return True

    log = rolling_log(Disk(sim, syncer=Later("sync")))
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
