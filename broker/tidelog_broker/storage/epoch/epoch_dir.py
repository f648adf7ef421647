"""Creation of an epoch's directory, atomically and durably."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelog_broker.storage.epoch.existence_markers import mark_newest, prepare_newest_marker
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.epoch.repair_markers import write_marker
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
    """Create an epoch's directory with its first segment.

    Args:
        directory: the path of the new directory, inside the partition's directory.
        start: start of the first segment.
        is_newest: whether to record it as the newest epoch of the partition, see `existence_markers`.
        is_lacking: whether the copy lacks records that this node has acknowledged, see `repair_markers`.
        before_named: called before the directory gets its name; returns when everything that must be durable first
            is durable; raises a StorageError.

    Raises:
        DiskFullError: no space; nothing has changed.
        StorageFailedError: the disk failed; the directory may exist.
    """
    fs, partition = disk.fs, directory.parent
    unnamed = directory.with_name(directory.name + NEW_SUFFIX)
    try:
        if is_newest:
            prepare_newest_marker(fs, partition)
        if fs.exists(unnamed):
            remove_epoch_dir(fs, unnamed)
        fs.make_dir(unnamed)
        first = ActiveSegment.begin(disk, unnamed, start, segment_bytes=segment_bytes)
        try:
            first.take_name()
        finally:
            first.abandon()
        if is_lacking:
            write_marker(fs, unnamed)
        fs.sync_dir(unnamed)
        if before_named is not None:
            before_named()
        fs.rename(unnamed, directory)
    except OSError as error:
        raise space_or_failure(f"epoch {start.epoch} cannot be created in {directory}", error) from error
    try:
        if is_newest:
            mark_newest(fs, partition, start.epoch)
        fs.sync_dir(partition)
    except OSError as error:  # A DiskFullError would promise that nothing has changed.
        raise StorageFailedError(
            f"epoch {start.epoch} was created in {directory}, but not durably: {error}; check the disk"
        ) from error
