"""Repair markers: an epoch's log lacks records, because it was truncated at damage, was lost, or the machine crashed.

Such a log is valid but short: a replica that acknowledged more than it holds must not report its end when a new owner
is elected. So before a damaged log is truncated, an empty file `repairing` is created in the epoch's directory. While
it exists the log is in LIMBO, also after a restart. It is removed when the missing part has been fetched up to the end
that the epoch's owner reported after the truncation, or when the end of the epoch is decided. Rejected: recording the
former end and ending LIMBO there, because the last synced group has no sync mark yet and may be the damaged part.

Where appends are not synced, a machine crash loses the newest of them. Such a log, too, is valid but short; it still
counts in an election in which every other replica answers, so it has its own marker, `short-EPOCH` in the partition's
directory. Without the marker the second start after the crash would trust the log again.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.filesystem import FileSystem

REPAIR_MARKER: Final = "repairing"
_SHORT_NOTE: Final = re.compile(r"short-\d{8,20}")


def has_marker(fs: FileSystem, directory: Path) -> bool:
    """Return whether an epoch's log lacks records that it once held."""
    return fs.exists(directory / REPAIR_MARKER)


def write_marker(fs: FileSystem, directory: Path) -> None:
    """Create the repair marker of an epoch's log that is about to be truncated at its damage, durably.

    Raises:
        OSError: the marker may or may not exist; the log must not be truncated.
    """
    path = directory / REPAIR_MARKER
    if not fs.exists(path):
        with closing(fs.open(path, create=True)) as file:
            file.datasync()
    fs.sync_dir(directory)


def remove_marker(fs: FileSystem, directory: Path) -> None:
    """Remove the repair marker of an epoch's log, durably, if it exists.

    Raises:
        OSError: the marker may or may not exist.
    """
    path = directory / REPAIR_MARKER
    if fs.exists(path):
        fs.unlink(path)
        fs.sync_dir(directory)


def is_marked_short(fs: FileSystem, directory: Path, epoch: int) -> bool:
    """Return whether the machine crashed during an unsynced epoch whose log has not caught up since."""
    return fs.exists(directory / f"short-{epoch:08d}")


def mark_short(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Record durably that an epoch's log may lack acknowledged records.

    Nothing is recorded if the partition's directory does not exist.

    Raises:
        OSError: the marker may or may not exist.
    """
    if not fs.exists(directory):
        return
    if not is_marked_short(fs, directory, epoch):
        fs.open(directory / f"short-{epoch:08d}", create=True).close()
    fs.sync_dir(directory)


def clear_short(fs: FileSystem, directory: Path) -> None:
    """Remove the `short` markers of all epochs, durably.

    Raises:
        OSError: some markers may remain.
    """
    names = [name for name in fs.list_dir(directory) if _SHORT_NOTE.fullmatch(name)] if fs.exists(directory) else []
    for name in names:
        fs.unlink(directory / name)
    if names:
        fs.sync_dir(directory)
