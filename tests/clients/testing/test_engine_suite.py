"""The built-in engines pass the conformance suite of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.storage.rocksdb.faults import break_wal

from tidelog.testing.engine_suite import EngineSuite
from tidelog.testing.failing_files import FailingFileSystem
from tidelog_broker.storage.engine.store import Engine, Volume
from tidelog_broker.storage.epoch.segment_engine import segment_engine
from tidelog_broker.storage.memory.memory_engine import MemoryEngine
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine

MEMORY_BYTES = 1 << 20


class TestMemoryEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return MemoryEngine(volume.fs, bytes_max=MEMORY_BYTES, topic_bytes_max=MEMORY_BYTES)


class TestSegmentEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return segment_engine(volume)


class TestRocksEngine(EngineSuite):
    """A second engine on the same files is a restart, so it ends the first one as a kill would."""

    engines_dir: Path
    engine: RocksEngine | None

    @pytest.fixture(autouse=True)
    def _engines(self, tmp_path: Path) -> Iterator[None]:
        self.engines_dir, self.engine = tmp_path / "engines", None
        yield
        self.end()

    def end(self) -> None:
        if self.engine is not None:
            self.engine.close()

    def make_engine(self, volume: Volume) -> Engine:
        self.end()
        volume.engines_dir = self.engines_dir
        volume.rocksdb_preset = "small"
        self.engine = RocksEngine(volume)
        return self.engine

    def break_disk(self, volume: Volume, fs: FailingFileSystem, operation: str) -> None:
        """Replace the WAL by one that fails, as RocksDB does not write through `fs`."""
        assert self.engine is not None
        break_wal(self.engine, operation)
