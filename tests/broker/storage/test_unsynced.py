"""The sync that a rolled segment still owes: done once, by whoever comes first, and never tried again."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import pytest
from tests.broker.storage.build import PARTITION, TOPIC_ID, append, batch
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.background import Background
from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.epoch_log import EpochLog
from tidelog_broker.storage.errors import StorageFailedError
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
    synced: list[Path] = []

    def note(operation: str, path: Path) -> OSError | None:
        if operation == "sync" and path.suffix == ".seg":
            synced.append(path)
        return None

    sim.fail = note
    return synced


def test_a_rolled_segment_is_synced_once_in_the_background() -> None:
    sim, background = SimDisk(), Background("sync")
    log = rolling_log(Disk(sim, syncer=background))
    roll_once(log)
    synced = count_syncs(sim)
    roll_once(log)
    background.close()
    rolled = set(synced)
    assert len(rolled) == 1
    log.sync()
    assert [path for path in synced if path in rolled] == list(rolled)
    log.close()
    assert sim.open_files == 0


def test_a_failed_sync_in_the_background_stops_the_log_at_its_next_step() -> None:
    sim, background = SimDisk(), Background("sync")
    log = rolling_log(Disk(sim, syncer=background))
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
    roll_once(log)
    log.close(sync=False)
    assert sim.open_files == 0
    synced = count_syncs(sim)
    for work in queue:
        assert callable(work)
        work()
    assert synced == []
