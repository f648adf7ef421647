"""Mutations of a start after a disk failure. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.epoch import recovery, truncation
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.node import journal
from tidelog_proto.batch.header import Buffer

Replacements = Sequence[tuple[object, str, object]]


class _Sparing:
    """A file that skips writes of bytes that it already has."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        data = b"".join(buffers)
        if self._file.pread(len(data), at) != data:
            self._file.pwritev(buffers, at)


def log_only_synced() -> Replacements:
    """A start syncs the log that it has read."""

    def write_nothing(*_: object) -> None:
        pass

    return [(module, "rewrite_range", write_nothing) for module in (recovery, truncation)]


def journal_only_synced() -> Replacements:
    """A start syncs the journal that it has read."""
    recover = journal._recover

    def recover_sparing(file: Any, magic: bytes) -> tuple[int, list[bytes], int, bool]:
        sparing: Any = _Sparing(file)
        return recover(sparing, magic)

    return [(journal, "_recover", recover_sparing)]


def lost_directory_is_empty() -> Replacements:
    """A copy with a missing directory counts as one that has never begun."""

    def begin_nothing(_: ReplicaLog) -> None:
        pass

    return [(ReplicaLog, "_recreate_lost_epoch", begin_nothing)]
