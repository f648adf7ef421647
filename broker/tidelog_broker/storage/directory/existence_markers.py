"""Existence markers, which distinguish a lost directory from one that never existed.

    DATA/partitions/TOPIC.ID-N.held             empty: the directory TOPIC.ID-N has been created
    DATA/partitions/TOPIC.ID-N/newest-00000007  empty: epoch 7 is the newest that has begun on this node

A replica without a record of an epoch has no directory for it and may vote that its log is empty. A replica that has
lost its directory must not: it may have acknowledged records. Each marker lies beside the object that it marks and
becomes durable with the same sync; it is created after the object, so that no crash leaves a marker without its object.
Directories of older versions get their markers when they are opened. A missing epoch or segment between others needs no
marker, because the log before and after it is not contiguous.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.filesystem import FileSystem

HELD_SUFFIX: Final = ".held"
_BLANK: Final = "newest"
"""A marker without an epoch, created early, because a rename works on a full disk."""
_NEWEST: Final = re.compile(r"newest-(\d{8,20})")


def mark_directory(fs: FileSystem, directory: Path) -> None:
    """Mark that a partition's directory exists; the caller syncs its parent directory.

    Raises:
        OSError: the marker was not created.
    """
    if not fs.exists(_marker_path(directory)):
        fs.open(_marker_path(directory), create=True).close()


def has_directory_marker(fs: FileSystem, directory: Path) -> bool:
    """Return whether the marker of a partition's directory exists."""
    return fs.exists(_marker_path(directory))


def remove_directory_marker(fs: FileSystem, directory: Path) -> None:
    """Remove the existence marker of a partition's directory, before the directory itself.

    The next sync of the parent directory makes both removals durable.

    Raises:
        OSError: the marker may or may not exist.
    """
    if fs.exists(_marker_path(directory)):
        fs.unlink(_marker_path(directory))


def prepare_newest_marker(fs: FileSystem, directory: Path) -> None:
    """Create the file that `mark_newest` renames, so that recording an epoch needs no space on the disk.

    Raises:
        OSError: the file was not created.
    """
    if _note(fs, directory) is None:
        fs.open(directory / _BLANK, create=True).close()


def mark_newest(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Record an epoch as the newest of a partition's directory; the caller syncs the directory.

    Raises:
        OSError: the epoch may or may not be recorded.
    """
    note = _note(fs, directory)
    assert note is not None, "prepare_newest_marker was not called"
    fs.rename(directory / note, directory / f"newest-{epoch:08d}")


def marked_newest(fs: FileSystem, directory: Path) -> int | None:
    """Return the recorded newest epoch of a partition's directory; None if no epoch is recorded."""
    match = _NEWEST.fullmatch(_note(fs, directory) or "")
    return int(match[1]) if match else None


def recreate_directory(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Recreate the lost directory of a partition, durably, with the marker that an epoch had begun in it.

    Raises:
        OSError: afterwards the directory either has the marker or does not exist.
    """
    unnamed = directory.with_name(directory.name + NEW_SUFFIX)
    if not fs.exists(unnamed):
        fs.make_dir(unnamed)
    prepare_newest_marker(fs, unnamed)
    mark_newest(fs, unnamed, epoch)
    fs.sync_dir(unnamed)
    fs.rename(unnamed, directory)
    fs.sync_dir(directory.parent)


def _marker_path(directory: Path) -> Path:
    return directory.with_name(directory.name + HELD_SUFFIX)


def _note(fs: FileSystem, directory: Path) -> str | None:
    return max((name for name in fs.list_dir(directory) if name == _BLANK or _NEWEST.fullmatch(name)), default=None)
