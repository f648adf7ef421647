"""The directories of a partition: their names, their changes of role, and their recovery at start.

    TOPIC.ID-N/epoch-00000007/          an epoch of the log
    TOPIC.ID-N/epoch-00000006.fill/     a partial copy of an epoch, or of another version of it, fetched from peers
    TOPIC.ID-N/epoch-00000005.bad-1/    a copy that was set aside for the operator; never removed by a start
    TOPIC.ID-N/epoch-00000004.new/      an epoch that is being created
    TOPIC.ID-N/epoch-00000003.c00000006/  a compacted version of an epoch, decided at the end of epoch 6
    TOPIC.ID-N/epoch-00000002.making/   a compacted version being written

The epochs of the log are always contiguous: a copy of an older epoch that the next one does not continue is renamed to
`.fill` before the next one begins. So the end of an older epoch is known locally, an epoch that ends early is damaged,
and no read crosses a gap. Rejected: leaving short copies in place and finding gaps by comparing offsets, which cannot
distinguish a copy that was always short from a damaged one.

A compacted epoch gets its name when it is complete and durable, and replaces the older version; a crash in between
leaves both, and the newer one counts. Versions of an epoch never share a name: a reader of the older version reaches
the end of its files, never another file under the same name.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.directory.epoch_dir import remove_epoch_dir
from tidelog_broker.storage.directory.existence_markers import (
    HELD_SUFFIX,
    has_directory_marker,
    mark_directory,
    mark_newest,
    marked_newest,
    prepare_newest_marker,
    remove_directory_marker,
)
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import EpochStore, Volume
from tidelog_broker.storage.engines.stores import forget_stores, is_deleted, open_store, remove_store
from tidelog_broker.storage.io.errors import DamagedError, EngineMissingError, is_shortage
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_proto.limits import MIB, TOPIC_ID_BYTES

TRASH_PREFIX: Final = ".trash-"
FILL_SUFFIX: Final = ".fill"
REASON_NAME: Final = "reason.txt"
"""The file with the reason, in a directory that was set aside."""

MAKING_SUFFIX: Final = ".making"
_COPIED_BYTES: Final = MIB
_EPOCH_DIR: Final = re.compile(r"epoch-(\d{8,20})(?:\.c(\d{8,20}))?")
_MAKING_DIR: Final = re.compile(r"epoch-(\d{8,20})\.making")
_FILL_DIR: Final = re.compile(r"epoch-(\d{8,20})\.fill")
_BAD_DIR: Final = re.compile(r"epoch-(\d{8,20})(?:\.fill|\.c\d{8,20})?\.bad-(\d{1,9})")
_PARTITION_DIR: Final = re.compile(r"([A-Za-z0-9._-]+)\.([0-9a-f]{32})-(\d{1,10})")


class PartitionName(NamedTuple):
    """The parts of a partition directory's name."""

    topic: str
    topic_id: bytes
    partition: int


def partition_dir_name(topic: str, topic_id: bytes, partition: int) -> str:
    """Return the name of a partition's directory: `TOPIC.ID-N`, the id in hex."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return f"{topic}.{topic_id.hex()}-{partition}"


def parse_partition_dir_name(name: str) -> PartitionName | None:
    """Parse a directory's name; None if it is not a partition's."""
    match = _PARTITION_DIR.fullmatch(name)
    return PartitionName(match[1], bytes.fromhex(match[2]), int(match[3])) if match else None


def stored_partitions(fs: FileSystem, partitions_dir: Path) -> set[PartitionName]:
    """Return the partitions that have a directory or its existence marker.

    Raises:
        OSError: the disk cannot be read.
    """
    names = (parse_partition_dir_name(name.removesuffix(HELD_SUFFIX)) for name in fs.list_dir(partitions_dir))
    return {name for name in names if name is not None}


def epoch_dir_name(epoch: int) -> str:
    """Return the name of an epoch's directory."""
    return f"epoch-{epoch:08d}"


def compacted_dir_name(epoch: int, decided: int) -> str:
    """Return the directory name of a compacted version of an epoch that was decided at the end of epoch `decided`."""
    return f"{epoch_dir_name(epoch)}.c{decided:08d}"


def making_dir_name(epoch: int) -> str:
    """Return the name of the directory in which an epoch is being compacted."""
    return epoch_dir_name(epoch) + MAKING_SUFFIX


def partial_copy_dir_name(epoch: int) -> str:
    """Return the name of the directory of the partial copy of an epoch."""
    return epoch_dir_name(epoch) + FILL_SUFFIX


def epoch_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories of the log's epochs by epoch, in order; of several versions the newest."""
    return {epoch: paths[-1] for epoch, paths in _versions(fs, directory).items()}


def _versions(fs: FileSystem, directory: Path) -> dict[int, list[Path]]:
    """Return the directories of each epoch of the log, in order; an epoch's versions from oldest to newest."""
    matches = [match for name in fs.list_dir(directory) if (match := _EPOCH_DIR.fullmatch(name))]
    versions: dict[int, list[Path]] = {}
    for match in sorted(matches, key=lambda match: (int(match[1]), int(match[2] or -1))):
        versions.setdefault(int(match[1]), []).append(directory / match[0])
    return versions


def partial_copy_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories of partial copies beside the log, by epoch, in order."""
    return _matching(fs, directory, _FILL_DIR)


def making_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the directories in which epochs are being compacted, by epoch, in order."""
    return _matching(fs, directory, _MAKING_DIR)


def older_dirs(fs: FileSystem, directory: Path) -> list[Path]:
    """Return the directories of replaced versions of epochs."""
    return [path for paths in _versions(fs, directory).values() for path in paths[:-1]]


def is_aside(name: str) -> bool:
    """Return whether a directory's name marks a copy that was set aside."""
    return _BAD_DIR.fullmatch(name) is not None


def aside_dirs(fs: FileSystem, directory: Path) -> list[Path]:
    """Return the directories of copies that were set aside, in the order of their names."""
    return [directory / name for name in fs.list_dir(directory) if is_aside(name)]


def missing_epoch(fs: FileSystem, directory: Path) -> int | None:
    """Return the newest epoch that was set aside; None without such an epoch, or if the log has a newer one."""
    names = [match for name in fs.list_dir(directory) if (match := _BAD_DIR.fullmatch(name))]
    aside = max((int(match[1]) for match in names if FILL_SUFFIX not in match[0]), default=None)
    newest = max(epoch_dirs(fs, directory), default=-1)
    return aside if aside is not None and aside > newest else None


def lost_epoch(fs: FileSystem, directory: Path) -> int | None:
    """Return the newest epoch that has begun in a partition's directory; None if that or a newer one is stored."""
    marked = marked_newest(fs, directory)
    aside = [int(match[1]) for name in fs.list_dir(directory) if (match := _BAD_DIR.fullmatch(name))]
    newest = max([*epoch_dirs(fs, directory), *partial_copy_dirs(fs, directory), *aside], default=-1)
    return marked if marked is not None and marked > newest else None


def mark_newest_dir(fs: FileSystem, directory: Path) -> None:
    """Create missing existence markers of a partition's directory and its newest epoch, and make them durable.

    A marker is skipped if the disk is full.

    Raises:
        OSError: the disk failed.
    """
    newest, marked = max(epoch_dirs(fs, directory), default=-1), marked_newest(fs, directory)
    try:
        if newest > (-1 if marked is None else marked):
            prepare_newest_marker(fs, directory)
            mark_newest(fs, directory, newest)
        if not has_directory_marker(fs, directory):
            mark_directory(fs, directory)
            fs.sync_dir(directory.parent)
    except OSError as error:
        if not is_shortage(error):
            raise
    fs.sync_dir(directory)


def demote(volume: Volume, directory: Path) -> None:
    """Rename the directory of an epoch of the log to `.fill`, durably. Its store must be closed.

    Raises:
        OSError: the directory has its old or its new name.
    """
    match = _EPOCH_DIR.fullmatch(directory.name)
    assert match is not None
    target = directory.with_name(partial_copy_dir_name(int(match[1])))
    if volume.fs.exists(target):
        remove_store(volume, target)
    volume.fs.rename(directory, target)
    volume.fs.sync_dir(directory.parent)


def put_aside(fs: FileSystem, directory: Path, reason: str, *, called: str | None = None) -> Path:
    """Rename the directory of an epoch, in the log or partial, to `.bad-N`, durably; return its new path.

    Args:
        called: the beginning of the new name; by default the old name.

    Raises:
        OSError: the directory has its old or its new name.
    """
    called = called or directory.name
    with contextlib.suppress(OSError):  # On a full or failing disk the copy is set aside without the reason.
        if not fs.exists(directory / REASON_NAME):
            with closing(fs.open(directory / REASON_NAME, create=True)) as file:
                file.pwritev([reason.encode() + b"\n"], 0)
    numbers = [
        int(match[2])
        for name in fs.list_dir(directory.parent)
        if (match := _BAD_DIR.fullmatch(name)) and name.startswith(called + ".bad-")
    ]
    target = directory.with_name(f"{called}.bad-{max(numbers, default=0) + 1}")
    fs.rename(directory, target)
    fs.sync_dir(directory.parent)
    return target


def copy_aside(fs: FileSystem, directory: Path, reason: str) -> Path:
    """Copy the directory of an epoch to `.bad-N`, durably; return the copy's path.

    Raises:
        OSError: the copy is incomplete; the next start removes it.
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
    """The opened epochs of a log.

    Attributes:
        logs: the epochs' stores in order.
        unreadable: the epoch before them that cannot be opened, with the reason; None if all were opened.
        needs_engine: whether the reason is that the epoch's engine is not installed.
    """

    logs: Sequence[EpochStore]
    unreadable: tuple[int, str] | None
    needs_engine: bool = False


def open_epochs(disk: Volume, directory: Path, *, segment_bytes: int) -> OpenedEpochs:
    """Open epochs newest first, because each one's start is the end of the one before it.

    If an epoch cannot be opened, the end of the one before it is unknown, and older epochs are not opened. An older
    epoch whose contents its engine has lost is removed, and the epochs before it become partial copies.

    Raises:
        StorageFailedError, OSError: the disk cannot be read or written.
    """
    logs: list[EpochStore] = []
    end_offset: int | None = None
    dirs = _usable_epoch_dirs(disk, directory)
    for epoch, path in reversed(dirs.items()):
        try:
            log = open_store(disk, path, segment_bytes=segment_bytes, sealed_end_offset=end_offset)
        except EngineMissingError as error:
            return OpenedEpochs(logs, (epoch, f"{path}: {error.message}"), needs_engine=True)
        except DamagedError as error:
            return OpenedEpochs(logs, (epoch, error.message))
        if log is None:
            for older in [older for older in dirs if older < epoch]:
                demote(disk, dirs[older])
            remove_store(disk, path)
            break
        end_offset = log.start_offset
        logs.insert(0, log)
    return OpenedEpochs(logs, None)


def _matching(fs: FileSystem, directory: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    matches = [(match, name) for name in fs.list_dir(directory) if (match := pattern.fullmatch(name))]
    return dict(sorted((int(match[1]), directory / name) for match, name in matches))


def _usable_epoch_dirs(volume: Volume, directory: Path) -> dict[int, Path]:
    """Return the epochs' directories, after removing those that a crash left half created or half deleted."""
    fs = volume.fs
    for name in fs.list_dir(directory):
        if name.endswith((NEW_SUFFIX, MAKING_SUFFIX)):
            if fs.is_dir(directory / name):
                remove_store(volume, directory / name)
            else:
                fs.unlink(directory / name)
    for paths in _versions(fs, directory).values():
        for path in paths[:-1]:
            remove_store(volume, path)
    dirs = epoch_dirs(fs, directory)
    for epoch in list(dirs)[:-1]:
        # Retention deletes from the front, so a directory without records there is an interrupted deletion.
        if not is_deleted(volume, dirs[epoch]):
            break
        remove_store(volume, dirs.pop(epoch))
    return dirs


def remove_partition_dir(fs: FileSystem, directory: Path) -> None:
    """Remove a directory that no log uses, with everything in it."""
    for name in fs.list_dir(directory):
        path = directory / name
        if fs.is_dir(path):
            remove_partition_dir(fs, path)
        else:
            fs.unlink(path)
    fs.remove_dir(directory)
    fs.sync_dir(directory.parent)


def forget_partition_dir(volume: Volume, directory: Path) -> None:
    """Remove a partition's directory, if it exists, and its existence marker."""
    fs = volume.fs
    remove_directory_marker(fs, directory)
    if fs.exists(directory):
        forget_stores(volume, directory)
        remove_partition_dir(fs, directory)
    fs.sync_dir(directory.parent)


def sweep_trash(fs: FileSystem, partitions_dir: Path) -> int:
    """Remove the remains of interrupted deletions and creations; return their number."""
    names = [name for name in fs.list_dir(partitions_dir) if name.startswith(TRASH_PREFIX) or name.endswith(NEW_SUFFIX)]
    for name in names:
        remove_partition_dir(fs, partitions_dir / name)
    return len(names)
