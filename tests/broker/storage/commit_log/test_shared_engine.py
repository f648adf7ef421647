"""The conformance suite with the shared file model, and what is particular to it."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tidelog.testing.engine_suite import EngineSuite
from tidelog_broker.storage.commit_log.commit_log import Sizes
from tidelog_broker.storage.commit_log.shared_engine import SharedEngine
from tidelog_broker.storage.engine.store import Engine, Volume
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.limits import KIB

SIZES = Sizes(file_bytes=64 * KIB, chunk_bytes=16 * KIB, log_bytes_min=128 * KIB, tail_bytes_max=8 * KIB)


class TestSharedEngine(EngineSuite):
    """Small files, so that the tests roll, copy and delete them."""

    log_dir: Path

    @pytest.fixture(autouse=True)
    def log_directory(self, tmp_path: Path) -> None:
        """Choose where the commit log is."""
        self.log_dir = tmp_path / "commit-log"

    def make_engine(self, volume: Volume) -> Engine:
        """Return the engine as after a start of the node."""
        return SharedEngine(cast(Disk, volume), self.log_dir, SIZES)
