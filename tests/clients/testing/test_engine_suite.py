"""The built-in engines pass the conformance suite of engines."""

from __future__ import annotations

from tidelog.testing.engine_suite import EngineSuite
from tidelog_broker.storage.engine.store import Engine, Volume
from tidelog_broker.storage.epoch.segment_engine import segment_engine


class TestSegmentEngine(EngineSuite):
    def make_engine(self, volume: Volume) -> Engine:
        return segment_engine(volume)
