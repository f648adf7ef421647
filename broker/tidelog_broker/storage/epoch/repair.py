"""Notes that an epoch's log lacks what it held: it was cut in front of damage or lost, or the machine went down.

Such a log is sound and short, and that is what makes it dangerous: a replica that acknowledged more than it holds must
not say "this is my end" when a successor is chosen. So before anything is cut, an empty file by this name is made
in the epoch's directory, and while it is there the log is in LIMBO, also after a crash or a restart. It goes when the
missing part has been fetched through the end that the epoch's owner told afterwards, or when the end of the epoch is
decided. Rejected: writing down how far the log reached, and ending LIMBO there, because the last synced group has no
mark yet and may be just what rotted.

Where appends are not synced, a machine that goes down takes the newest of them with it. Such a log is just as sound and
short; it may still count where all others answer, too, so it gets a note of its own, `short-EPOCH` in the partition's
directory. Without it a second start, after which the machine was not down, would trust the log again.
"""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.filesystem import FileSystem

REPAIR_NOTE: Final = "repairing"
_SHORT_NOTE: Final = re.compile(r"short-\d{8,20}")


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


def is_short(fs: FileSystem, directory: Path, epoch: int) -> bool:
    """Whether the machine went down under an epoch that is not synced, and its log has not caught up since."""
    return fs.exists(directory / f"short-{epoch:08d}")


def note_short(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Note durably that an epoch's log may lack what it acknowledged. Where there is no directory, nothing was.

    Raises:
        OSError: the note may be there or not.
    """
    if not fs.exists(directory):
        return
    if not is_short(fs, directory, epoch):
        fs.open(directory / f"short-{epoch:08d}", create=True).close()
    fs.sync_dir(directory)


def forget_short(fs: FileSystem, directory: Path) -> None:
    """Remove the notes of all epochs, durably.

    Raises:
        OSError: some may be there.
    """
    names = [name for name in fs.list_dir(directory) if _SHORT_NOTE.fullmatch(name)] if fs.exists(directory) else []
    for name in names:
        fs.unlink(directory / name)
    if names:
        fs.sync_dir(directory)
