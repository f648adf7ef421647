"""Notes of what must be there, so that a directory that has gone is not taken for one that never was.

    DATA/partitions/TOPIC.ID-N.held             empty: the directory TOPIC.ID-N has been made
    DATA/partitions/TOPIC.ID-N/newest-00000007  empty: epoch 7 has begun here; the newest that has

A replica that was to store an epoch and never got a record of it has no directory for it, and may say so. One that has
lost its directory must not: what it acknowledged was in there. Each note lies beside what it speaks of and becomes
durable by the same sync, so it costs none; it is made behind the directory, so that no crash leaves the note alone.
Directories of before there were notes get theirs when they are opened. An epoch or segment that is missing between
others needs no note: what is behind it does not continue what is in front of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.layout import NEW_SUFFIX

HELD_SUFFIX: Final = ".held"
_BLANK: Final = "newest"
"""A note that says nothing yet: made early, because a full disk still renames."""
_NEWEST: Final = re.compile(r"newest-(\d{8,20})")


def note_directory(fs: FileSystem, directory: Path) -> None:
    """Note that a partition's directory has been made; whoever calls it syncs the one that it lies in.

    Raises:
        OSError: the note is not there.
    """
    if not fs.exists(_held(directory)):
        fs.open(_held(directory), create=True).close()


def has_directory_note(fs: FileSystem, directory: Path) -> bool:
    """Whether a partition's directory has been made, as far as it is noted."""
    return fs.exists(_held(directory))


def forget_directory(fs: FileSystem, directory: Path) -> None:
    """Take the note away, in front of the directory; both are gone durably with the next sync.

    Raises:
        OSError: it may be there or not.
    """
    if fs.exists(_held(directory)):
        fs.unlink(_held(directory))


def prepare_note(fs: FileSystem, directory: Path) -> None:
    """See that there is a file for `note_newest` in a partition's directory.

    Raises:
        OSError: there is none.
    """
    if _note(fs, directory) is None:
        fs.open(directory / _BLANK, create=True).close()


def note_newest(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Note that an epoch has begun in a partition's directory; whoever calls it syncs the directory.

    Raises:
        OSError: the note may say so or not.
    """
    note = _note(fs, directory)
    assert note is not None, "prepare it first"
    fs.rename(directory / note, directory / f"newest-{epoch:08d}")


def noted_newest(fs: FileSystem, directory: Path) -> int | None:
    """Return the newest epoch that has begun in a partition's directory, as far as it is noted."""
    match = _NEWEST.fullmatch(_note(fs, directory) or "")
    return int(match[1]) if match else None


def make_again(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Make a partition's directory that was lost, durably, with the note that an epoch had begun in it.

    Raises:
        OSError: it is there with the note, or not at all.
    """
    unnamed = directory.with_name(directory.name + NEW_SUFFIX)
    if not fs.exists(unnamed):
        fs.make_dir(unnamed)
    prepare_note(fs, unnamed)
    note_newest(fs, unnamed, epoch)
    fs.sync_dir(unnamed)
    fs.rename(unnamed, directory)
    fs.sync_dir(directory.parent)


def _held(directory: Path) -> Path:
    return directory.with_name(directory.name + HELD_SUFFIX)


def _note(fs: FileSystem, directory: Path) -> str | None:
    return max((name for name in fs.list_dir(directory) if name == _BLANK or _NEWEST.fullmatch(name)), default=None)
