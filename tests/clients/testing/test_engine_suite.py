"""The built-in engines pass the conformance suite of engines."""

from __future__ import annotations

from tidelog.testing.engine_suite import EngineSuite
from tidelog_broker.storage.engine.store import Engine, Volume
from tidelog_broker.storage.epoch.segment_engine import segment_engine
from tidelog_broker.storage.memory.memory_engine import MemoryEngine

MEMORY_BYTES = 1 << 20


class TestMemoryEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return MemoryEngine(volume.fs, bytes_max=MEMORY_BYTES, topic_bytes_max=MEMORY_BYTES)


class TestSegmentEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return segment_engine(volume)
