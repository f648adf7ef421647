"""Creation and removal of an epoch's directory, for every engine: both are durable, and creation is atomic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tidelog_broker.storage.directory.engine_marker import is_engine_marker, write_engine_marker
from tidelog_broker.storage.directory.existence_markers import mark_newest, prepare_newest_marker
from tidelog_broker.storage.directory.names import NEW_SUFFIX, SEGMENT_SUFFIX
from tidelog_broker.storage.directory.repair_markers import write_marker
from tidelog_broker.storage.io.errors import StorageFailedError, space_or_failure
from tidelog_broker.storage.io.filesystem import FileSystem


def make_epoch_dir(
    fs: FileSystem,
    directory: Path,
    lay_out: Callable[[Path], None],
    *,
    epoch: int,
    engine: str,
    is_newest: bool,
    is_lacking: bool,
    before_named: Callable[[], None] | None = None,
) -> None:
    """Create an epoch's directory with the files of its engine.

    Args:
        directory: the path of the new directory, inside the partition's directory.
        lay_out: puts the engine's files into the directory, which has a temporary name.
        is_newest: whether to record it as the newest epoch of the partition, see `existence_markers`.
        is_lacking: whether the copy lacks records that this node has acknowledged, see `repair_markers`.
        before_named: called before the directory gets its name; returns when everything that must be durable first
            is durable; raises a StorageError.

    Raises:
        DiskFullError: no space; nothing has changed.
        StorageFailedError: the disk failed; the directory may exist.
    """
    partition = directory.parent
    unnamed = directory.with_name(directory.name + NEW_SUFFIX)
    try:
        if is_newest:
            prepare_newest_marker(fs, partition)
        if fs.exists(unnamed):
            remove_epoch_dir(fs, unnamed)
        fs.make_dir(unnamed)
        write_engine_marker(fs, unnamed, engine)
        lay_out(unnamed)
        if is_lacking:
            write_marker(fs, unnamed)
        fs.sync_dir(unnamed)
        if before_named is not None:
            before_named()
        fs.rename(unnamed, directory)
    except OSError as error:
        raise space_or_failure(f"epoch {epoch} cannot be created in {directory}", error) from error
    try:
        if is_newest:
            mark_newest(fs, partition, epoch)
        fs.sync_dir(partition)
    except OSError as error:  # A DiskFullError would promise that nothing has changed.
        raise StorageFailedError(
            f"epoch {epoch} was created in {directory}, but not durably: {error}; check the disk"
        ) from error


def remove_epoch_dir(fs: FileSystem, directory: Path) -> None:
    """Remove an epoch's directory, oldest segment first, each durably; a crash leaves a shorter or an empty log.

    The engine's marker is removed last, so that after a crash the next start knows whose files remain.
    """
    names = fs.list_dir(directory)
    markers = [name for name in names if is_engine_marker(name)]
    segments = [name for name in names if name.endswith(SEGMENT_SUFFIX)]
    for name in names:
        if name not in markers and name not in segments:
            fs.unlink(directory / name)
    for name in segments:
        fs.unlink(directory / name)
        fs.sync_dir(directory)
    for name in markers:
        fs.sync_dir(directory)
        fs.unlink(directory / name)
    fs.remove_dir(directory)
    fs.sync_dir(directory.parent)
