"""The directory of a store of the shared file model: its newest part, and how it becomes one of the segment engine."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.commit_log.store_identity import FILE_NAME, MOVED_NAME
from tidelog_broker.storage.directory.engine_marker import is_engine_marker
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_broker.storage.io.filesystem import FileSystem

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GrowingPart:
    """The newest segment together with the tail; see `Part`."""

    path: Path
    base_offset: int
    end_offset: int
    start_digest: int
    size_bytes: int
    is_growing: bool


def finish_move(fs: FileSystem, directory: Path, commit_log: CommitLog, store: int) -> None:
    """Forget a store in the log, then remove the files that make its directory one of the shared model.

    The file `moved` is durable, so everything of the store is in its segments. A crash leaves a directory of which an
    open does the rest. On a full disk the rest is done by the next open, too.

    Raises:
        OSError: the disk failed.
        StorageFailedError: the commit log has failed.
    """
    try:
        commit_log.forget(store)
    except DiskFullError as error:
        log.info("%s leaves the commit log at its next open: %s", directory, error.message)
        return
    for name in fs.list_dir(directory):
        if is_engine_marker(name):
            fs.unlink(directory / name)
    fs.sync_dir(directory)
    for name in (FILE_NAME, MOVED_NAME):
        if fs.exists(directory / name):
            fs.unlink(directory / name)
