"""The note that an epoch's log was cut in front of damage and lacks what it once held.

Such a log is sound and short, and that is what makes it dangerous: a replica that acknowledged more than it holds must
not say "this is my end" when a successor is chosen. So before anything is cut, an empty file by this name is made
in the epoch's directory, and while it is there the log is in LIMBO, also after a crash or a restart. It goes when the
missing part has been fetched through the end that the epoch's owner told afterwards, or when the end of the epoch is
decided. Rejected: writing down how far the log reached, and ending LIMBO there, because the last synced group has no
mark yet and may be just what rotted.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Final

from tidelog_broker.storage.filesystem import FileSystem

REPAIR_NOTE: Final = "repairing"


def has_note(fs: FileSystem, directory: Path) -> bool:
    """Whether an epoch's log lacks what it once held."""
    return fs.exists(directory / REPAIR_NOTE)


def write_note(fs: FileSystem, directory: Path) -> None:
    """Leave the note, durably.

    Raises:
        OSError: it may be there or not; nothing may be cut.
    """
    path = directory / REPAIR_NOTE
    if not fs.exists(path):
        with closing(fs.open(path, create=True)) as file:
            file.datasync()
    fs.sync_dir(directory)


def remove_note(fs: FileSystem, directory: Path) -> None:
    """Take the note away, durably, if it is there.

    Raises:
        OSError: it may be there or not.
    """
    path = directory / REPAIR_NOTE
    if fs.exists(path):
        fs.unlink(path)
        fs.sync_dir(directory)
