"""The directories of a partition: how they are called, how they change their role, what a start makes of them.

    TOPIC.ID-N/epoch-00000007/          an epoch of the log
    TOPIC.ID-N/epoch-00000006.fill/     a copy of an epoch, or of another version than the log's, filled from peers
    TOPIC.ID-N/epoch-00000005.bad-1/    a copy that was set aside, for the operator; a later start removes nothing of it
    TOPIC.ID-N/epoch-00000004.new/      being made
    TOPIC.ID-N/epoch-00000003.c00000006/  what compaction has made of an epoch, as decided at the end of epoch 6
    TOPIC.ID-N/epoch-00000002.making/   what compaction is making of an epoch

The epochs of the log are always contiguous: a copy of an older epoch that the next one does not continue is renamed
to `.fill` before that next one begins. So the end of an older epoch is known without asking anybody, an end that is
not met is damage, and nothing that is read ever crosses a hole. Rejected: leaving short copies where they are and
finding the holes by comparing offsets, which cannot tell a copy that was always short from one that has rotted.

A compacted epoch gets its name when it is complete and durable, and takes the place of the older version; a crash in
between leaves both, of which the newer counts. No two versions of an epoch ever have the same name: whoever still reads
the older one meets the end of its files, never others under their names.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.presence import (
    HELD_SUFFIX,
    forget_directory,
    has_directory_note,
    note_directory,
    note_newest,
    noted_newest,
    prepare_note,
)
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.io.errors import DamagedError, is_shortage
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import NEW_SUFFIX, SEGMENT_SUFFIX
from tidelog_proto.limits import MIB, TOPIC_ID_BYTES

TRASH_PREFIX: Final = ".trash-"
FILL_SUFFIX: Final = ".fill"
REASON_NAME: Final = "reason.txt"
"""Why a copy was set aside, in its directory."""

MAKING_SUFFIX: Final = ".making"
_COPIED_BYTES: Final = MIB
_EPOCH_DIR: Final = re.compile(r"epoch-(\d{8,20})(?:\.c(\d{8,20}))?")
_MAKING_DIR: Final = re.compile(r"epoch-(\d{8,20})\.making")
_FILL_DIR: Final = re.compile(r"epoch-(\d{8,20})\.fill")
_BAD_DIR: Final = re.compile(r"epoch-(\d{8,20})(?:\.fill|\.c\d{8,20})?\.bad-(\d{1,9})")
_PARTITION_DIR: Final = re.compile(r"([A-Za-z0-9._-]+)\.([0-9a-f]{32})-(\d{1,10})")


class PartitionName(NamedTuple):
    """What a partition's directory is called after."""

    topic: str
    topic_id: bytes
    partition: int


def partition_dir_name(topic: str, topic_id: bytes, partition: int) -> str:
    """Return the name of a partition's directory: `TOPIC.ID-N`, the id in hex."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return f"{topic}.{topic_id.hex()}-{partition}"


def parse_partition_dir_name(name: str) -> PartitionName | None:
    """Return what a directory is called after, None when it is not a partition's."""
    match = _PARTITION_DIR.fullmatch(name)
    return PartitionName(match[1], bytes.fromhex(match[2]), int(match[3])) if match else None


def stored_partitions(fs: FileSystem, partitions_dir: Path) -> set[PartitionName]:
    """Return of which partitions there is a directory, or the note that it was made.

    Raises:
        OSError: the disk does not read.
    """
    names = (parse_partition_dir_name(name.removesuffix(HELD_SUFFIX)) for name in fs.list_dir(partitions_dir))
    return {name for name in names if name is not None}


def epoch_dir_name(epoch: int) -> str:
    """Return the name of an epoch's directory."""
    return f"epoch-{epoch:08d}"


def compacted_dir_name(epoch: int, decided: int) -> str:
    """Return the name of the directory of an epoch as the decision at the end of epoch `decided` has compacted it."""
    return f"{epoch_dir_name(epoch)}.c{decided:08d}"


def making_dir_name(epoch: int) -> str:
    """Return the name of the directory in which an epoch is compacted."""
    return epoch_dir_name(epoch) + MAKING_SUFFIX


def fill_dir_name(epoch: int) -> str:
    """Return the name of the directory in which an epoch is filled."""
    return epoch_dir_name(epoch) + FILL_SUFFIX


def epoch_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories of the log's epochs by epoch, in order; of several versions the newest."""
    return {epoch: paths[-1] for epoch, paths in _versions(fs, directory).items()}


def _versions(fs: FileSystem, directory: Path) -> dict[int, list[Path]]:
    """Return the directories of each epoch of the log, in order; an epoch's versions from the oldest to the newest."""
    matches = [match for name in fs.list_dir(directory) if (match := _EPOCH_DIR.fullmatch(name))]
    versions: dict[int, list[Path]] = {}
    for match in sorted(matches, key=lambda match: (int(match[1]), int(match[2] or -1))):
        versions.setdefault(int(match[1]), []).append(directory / match[0])
    return versions


def fill_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories of epochs that are not in the log, or not yet, by epoch, in order."""
    return _matching(fs, directory, _FILL_DIR)


def making_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories in which epochs are compacted, by epoch, in order."""
    return _matching(fs, directory, _MAKING_DIR)


def older_dirs(fs: FileSystem, directory: Path) -> list[Path]:
    """Return the directories of versions of epochs that a newer one has replaced."""
    return [path for paths in _versions(fs, directory).values() for path in paths[:-1]]


def is_aside(name: str) -> bool:
    """Whether a directory's name says that the copy in it was set aside."""
    return _BAD_DIR.fullmatch(name) is not None


def aside_dirs(fs: FileSystem, directory: Path) -> list[Path]:
    """Return the directories of copies that were set aside, in the order of their names."""
    return [directory / name for name in fs.list_dir(directory) if is_aside(name)]


def missing_epoch(fs: FileSystem, directory: Path) -> int | None:
    """Return the epoch of the log that was the newest when it was set aside, and that nothing has replaced yet."""
    names = [match for name in fs.list_dir(directory) if (match := _BAD_DIR.fullmatch(name))]
    aside = max((int(match[1]) for match in names if FILL_SUFFIX not in match[0]), default=None)
    newest = max(epoch_dirs(fs, directory), default=-1)
    return aside if aside is not None and aside > newest else None


def lost_epoch(fs: FileSystem, directory: Path) -> int | None:
    """Return the newest epoch that has begun in a partition's directory, if nothing is here of it or a newer one."""
    noted = noted_newest(fs, directory)
    aside = [int(match[1]) for name in fs.list_dir(directory) if (match := _BAD_DIR.fullmatch(name))]
    newest = max([*epoch_dirs(fs, directory), *fill_dirs(fs, directory), *aside], default=-1)
    return noted if noted is not None and noted > newest else None


def note_newest_dir(fs: FileSystem, directory: Path) -> None:
    """See that the newest epoch of a partition's directory is noted, and the directory itself; all names are durable.

    Where a full disk has no space for a note there is none.

    Raises:
        OSError: the disk failed.
    """
    newest, noted = max(epoch_dirs(fs, directory), default=-1), noted_newest(fs, directory)
    try:
        if newest > (-1 if noted is None else noted):
            prepare_note(fs, directory)
            note_newest(fs, directory, newest)
        if not has_directory_note(fs, directory):
            note_directory(fs, directory)
            fs.sync_dir(directory.parent)
    except OSError as error:
        if not is_shortage(error):
            raise
    fs.sync_dir(directory)


def demote(fs: FileSystem, directory: Path) -> None:
    """Rename the directory of one of the log's epochs to `.fill`, durably. The log in it is closed.

    Raises:
        OSError: it has one of the two names.
    """
    match = _EPOCH_DIR.fullmatch(directory.name)
    assert match is not None
    target = directory.with_name(fill_dir_name(int(match[1])))
    if fs.exists(target):
        remove_epoch_dir(fs, target)
    fs.rename(directory, target)
    fs.sync_dir(directory.parent)


def put_aside(fs: FileSystem, directory: Path, reason: str, *, called: str | None = None) -> Path:
    """Rename an epoch's directory, of the log or being filled, to `.bad-N`, durably; return its new path.

    Its new name begins with what it is `called`: its name, unless given.

    Raises:
        OSError: it has one of the two names.
    """
    called = called or directory.name
    with contextlib.suppress(OSError):  # on a disk that is full or broken, the name has to say enough
        if not fs.exists(directory / REASON_NAME):
            with closing(fs.open(directory / REASON_NAME, create=True)) as file:
                file.pwritev([reason.encode() + b"\n"], 0)
    taken = [
        int(match[2])
        for name in fs.list_dir(directory.parent)
        if (match := _BAD_DIR.fullmatch(name)) and name.startswith(called + ".bad-")
    ]
    target = directory.with_name(f"{called}.bad-{max(taken, default=0) + 1}")
    fs.rename(directory, target)
    fs.sync_dir(directory.parent)
    return target


def keep_aside(fs: FileSystem, directory: Path, reason: str) -> Path:
    """Copy the directory of an epoch to `.bad-N`, durably, and leave it as it is; return the copy's path.

    Raises:
        OSError: the copy is not whole, and a start removes what there is of it.
    """
    copy = directory.with_name(directory.name + NEW_SUFFIX)
    if fs.exists(copy):
        remove_epoch_dir(fs, copy)
    fs.make_dir(copy)
    for name in fs.list_dir(directory):
        with (
            closing(fs.open_readonly(directory / name)) as source,
            closing(fs.open(copy / name, create=True)) as target,
        ):
            at = 0
            while data := source.pread(_COPIED_BYTES, at):
                target.pwritev([data], at)
                at += len(data)
            target.datasync()
    fs.sync_dir(copy)
    return put_aside(fs, copy, reason, called=directory.name)


class OpenedEpochs(NamedTuple):
    """The epochs' logs in order, and the epoch in front of them that cannot be opened at all, with why."""

    logs: Sequence[EpochLog]
    unreadable: tuple[int, str] | None


def open_epochs(disk: Disk, directory: Path, *, segment_bytes: int) -> OpenedEpochs:
    """Open epochs newest first, as each one's start is the end of the one before it.

    Where one cannot be opened at all, the end of the one before it is not known: they stay closed, both.

    Raises:
        StorageFailedError, OSError: the disk does not read or write.
    """
    logs: list[EpochLog] = []
    end_offset: int | None = None
    for epoch, path in reversed(_usable_epoch_dirs(disk.fs, directory).items()):
        try:
            log = EpochLog.open(disk, path, segment_bytes=segment_bytes, sealed_end_offset=end_offset)
        except DamagedError as error:
            return OpenedEpochs(logs, (epoch, error.message))
        end_offset = log.start_offset
        logs.insert(0, log)
    return OpenedEpochs(logs, None)


def _matching(fs: FileSystem, directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    matches = [(match, name) for name in fs.list_dir(directory) if (match := pattern.fullmatch(name))]
    return dict(sorted((int(match[1]), directory / name) for match, name in matches))


def _usable_epoch_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the epochs' directories, after removing what a crash left of one that was being made or deleted."""
    for name in fs.list_dir(directory):
        if name.endswith((NEW_SUFFIX, MAKING_SUFFIX)):
            if fs.is_dir(directory / name):
                remove_epoch_dir(fs, directory / name)
            else:
                fs.unlink(directory / name)
    for paths in _versions(fs, directory).values():
        for path in paths[:-1]:
            remove_epoch_dir(fs, path)
    dirs = epoch_dirs(fs, directory)
    for epoch in list(dirs)[:-1]:
        # Retention deletes from the front: a directory without a segment there is one that it did not finish.
        if any(name.endswith(SEGMENT_SUFFIX) for name in fs.list_dir(dirs[epoch])):
            break
        remove_epoch_dir(fs, dirs.pop(epoch))
    return dirs


def remove_partition_dir(fs: FileSystem, directory: Path) -> None:
    """Remove a directory that no log uses any more, with everything in it."""
    for name in fs.list_dir(directory):
        path = directory / name
        if fs.is_dir(path):
            remove_partition_dir(fs, path)
        else:
            fs.unlink(path)
    fs.remove_dir(directory)
    fs.sync_dir(directory.parent)


def forget_partition_dir(fs: FileSystem, directory: Path) -> None:
    """Remove a partition's directory, if it is there, and the note that it was made."""
    forget_directory(fs, directory)
    if fs.exists(directory):
        remove_partition_dir(fs, directory)
    fs.sync_dir(directory.parent)


def sweep_trash(fs: FileSystem, partitions_dir: Path) -> int:
    """Remove what deletions and creations that were cut short left behind; return how many."""
    names = [name for name in fs.list_dir(partitions_dir) if name.startswith(TRASH_PREFIX) or name.endswith(NEW_SUFFIX)]
    for name in names:
        remove_partition_dir(fs, partitions_dir / name)
    return len(names)
