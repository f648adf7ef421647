"""Fresh logs on a simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from tests.broker.storage.build import HOME, PARTITION, SEGMENT_BYTES, TOPIC_ID
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import SEGMENT, EpochStart
from tidelog_broker.storage.engines.stores import create_store
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk

EPOCH = HOME / "epoch-00000000"


def new_disk() -> SimDisk:
    sim = SimDisk()
    sim.make_dir(HOME)
    sim.root.sync()
    return sim


def disk_on(sim: SimDisk) -> Disk:
    return Disk(fs=sim, maps_reads=sim.is_mapped, maps_writes=sim.is_mapped)


def create_log(
    disk: Disk,
    directory: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    partition: int = PARTITION,
    epoch: int = 0,
    start_offset: int = 0,
    start_digest: int = 0,
) -> EpochLog:
    start = EpochStart(TOPIC_ID, partition, epoch, start_offset, start_digest)
    log = create_store(disk, directory, start, engine=SEGMENT, segment_bytes=segment_bytes)
    assert isinstance(log, EpochLog)
    return log


def create(
    sim: SimDisk, directory: Path = EPOCH, *, segment_bytes: int = SEGMENT_BYTES, epoch: int = 0, start_offset: int = 0
) -> EpochLog:
    return create_log(disk_on(sim), directory, segment_bytes=segment_bytes, epoch=epoch, start_offset=start_offset)


def delete_before(log: EpochLog, offset: int) -> int:
    """Delete whole segments below an offset, but not the newest one; return the bytes freed."""
    freed_bytes = 0
    while log.segment_count > 1 and log.segments[0].end_offset <= offset:
        freed_bytes += log.delete_oldest_segment()
    return freed_bytes


def reopen(sim: SimDisk, *, sealed_end_offset: int | None = None) -> EpochLog:
    return EpochLog.open(disk_on(sim), EPOCH, segment_bytes=SEGMENT_BYTES, sealed_end_offset=sealed_end_offset)


def open_partition(sim: SimDisk, *, segment_bytes: int = SEGMENT_BYTES) -> PartitionLog:
    return PartitionLog.open(
        disk_on(sim), HOME, topic="events", topic_id=TOPIC_ID, partition=PARTITION, segment_bytes=segment_bytes
    )


def epoch_logs(log: PartitionLog) -> list[EpochLog]:
    """Return the epochs of a log, all of which are in segments."""
    logs = [epoch for epoch in log.epochs if isinstance(epoch, EpochLog)]
    assert len(logs) == len(log.epochs)
    return logs


def retain(log: PartitionLog, bytes_max: int) -> int:
    """Delete whole old segments until at most this much is held; return the bytes given back."""
    return log.delete_before(log.outdated(below=0, bytes_max=max(1, bytes_max), committed=log.end_offset))


def failing(operations: set[str], number: int) -> Callable[[str, Path], OSError | None]:
    """Let the operation of that number among these fail, once."""
    left = number

    def fail(operation: str, path: Path) -> OSError | None:
        nonlocal left
        if operation in operations:
            left -= 1
        return OSError(errno.EIO, "broken") if operation in operations and left == -1 else None

    return fail
