"""Beginning an epoch in a new directory, which is there durably and complete, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelog_broker.storage.epoch.presence import note_newest, prepare_note
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.epoch.repair import write_note
from tidelog_broker.storage.io.errors import StorageFailedError, space_or_failure
from tidelog_broker.storage.segment.active_segment import ActiveSegment, SegmentStart
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import NEW_SUFFIX


def make_epoch_dir(
    disk: Disk,
    directory: Path,
    start: SegmentStart,
    *,
    segment_bytes: int,
    is_newest: bool,
    is_lacking: bool,
    before_named: Callable[[], None] | None = None,
) -> None:
    """Make an epoch's directory with its first segment in it.

    Args:
        disk: the disk.
        directory: what it is to be called, in its partition's directory.
        start: of the first segment.
        segment_bytes: how large that may grow.
        is_newest: whether it is noted as the newest epoch that has begun here, see `presence`.
        is_lacking: whether it lacks from its birth what this node held of the epoch, see `repair`.
        before_named: returns when all is durable that has to be before the epoch is there; raises a StorageError.

    Raises:
        DiskFullError: there is no space for it; nothing has changed.
        StorageFailedError: the disk failed; the directory may be there.
    """
    fs, partition = disk.fs, directory.parent
    unnamed = directory.with_name(directory.name + NEW_SUFFIX)
    try:
        if is_newest:
            prepare_note(fs, partition)
        if fs.exists(unnamed):
            remove_epoch_dir(fs, unnamed)
        fs.make_dir(unnamed)
        first = ActiveSegment.begin(disk, unnamed, start, segment_bytes=segment_bytes)
        try:
            first.take_name()
        finally:
            first.abandon()
        if is_lacking:
            write_note(fs, unnamed)
        fs.sync_dir(unnamed)
        if before_named is not None:
            before_named()
        fs.rename(unnamed, directory)
    except OSError as error:
        raise space_or_failure(f"epoch {start.epoch} cannot begin in {directory}", error) from error
    try:
        if is_newest:
            note_newest(fs, partition, start.epoch)
        fs.sync_dir(partition)
    except OSError as error:  # a full disk, too: it has its name, so this is no refusal that changes nothing
        raise StorageFailedError(f"epoch {start.epoch} began in {directory}, not durably: {error}") from error
