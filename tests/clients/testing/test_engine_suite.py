"""The built-in engines pass the conformance suite of engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.rocksdb.faults import break_wal

from tidelog.testing.engine_suite import EngineSuite
from tidelog.testing.failing_files import FailingFileSystem
from tidelog_broker.storage.engine.store import Engine, Volume
from tidelog_broker.storage.epoch.segment_engine import segment_engine
from tidelog_broker.storage.memory.file_copy import FileCopy
from tidelog_broker.storage.memory.memory_engine import MemoryBudget, MemoryEngine
from tidelog_broker.storage.memory.write_behind import WriteAtOnce, WriteBehindEngine, WriterThread
from tidelog_broker.storage.rocksdb.rocks_engine import RocksEngine

MEMORY_BYTES = 1 << 20


def new_budget() -> MemoryBudget:
    return MemoryBudget(bytes_max=MEMORY_BYTES, topic_bytes_max=MEMORY_BYTES)


class TestMemoryEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return MemoryEngine(volume.fs, new_budget())


class ByHand:
    """Writes copies when a test asks for it."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def wake(self, copy: FileCopy) -> None:
        """Write a part of the copy, or nothing."""
        while self._random.random() < 0.5 and copy.write(self._random.choice((1, 2000))):
            if self._random.random() < 0.3:
                copy.sync()


class TestWriteBehindEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return WriteBehindEngine(volume.fs, new_budget(), segment_engine(volume), WriteAtOnce())


class TestWriteBehindEngineThatLags(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return WriteBehindEngine(volume.fs, new_budget(), segment_engine(volume), ByHand(Random(1)))


class TestWriteBehindEngineWithItsThread(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        writer = WriterThread(period_s=0.001, idle_s=0.1)
        return WriteBehindEngine(volume.fs, new_budget(), segment_engine(volume), writer)


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
