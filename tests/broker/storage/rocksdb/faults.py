"""Faults of the RocksDB engine: a WAL that fails, and the files that a power cut leaves."""

from __future__ import annotations

from typing import Any, cast

from tidelog_broker.storage.rocksdb.database import Database
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine


class _FailingWal:
    """An open database whose writes or syncs fail, as RocksDB reports a failing disk."""

    def __init__(self, opened: Any, operation: str) -> None:
        self.opened = opened
        self._operation = operation

    def flush_wal(self, *, sync: bool) -> None:
        if self._operation == ("datasync" if sync else "pwritev"):
            raise OSError("IO error: Input/output error: While appending to file: 000009.log")
        self.opened.flush_wal(sync=sync)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened, name)


def database_of(engine: RocksEngine) -> Database:
    """Return the open database of an engine."""
    assert engine.database is not None
    return engine.database


def break_wal(engine: RocksEngine, operation: str) -> None:
    """Let writes of the WAL fail ("pwritev"), or its syncs ("datasync"), or neither (empty)."""
    database = cast(Any, database_of(engine))
    opened = database.opened
    if isinstance(opened, _FailingWal):
        opened = opened.opened
    database.opened = _FailingWal(opened, operation) if operation else opened
