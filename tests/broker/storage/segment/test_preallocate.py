from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import create_log

from tidelog_broker.storage.io.filesystem import RealFile
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.preallocate import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    SMALL_CHUNK_BYTES_MAX,
    ahead_bytes,
    next_chunk_bytes,
)
from tidelog_proto.limits import MIB

AllocateFn = Callable[[RealFile, int, int], None]


def test_small_files_quadruple_and_larger_ones_double() -> None:
    assert next_chunk_bytes(0) == CHUNK_BYTES_MIN
    assert next_chunk_bytes(10 * CHUNK_BYTES_MIN) == 30 * CHUNK_BYTES_MIN
    assert next_chunk_bytes(SMALL_CHUNK_BYTES_MAX // 2) == SMALL_CHUNK_BYTES_MAX
    assert next_chunk_bytes(2 * SMALL_CHUNK_BYTES_MAX) == 2 * SMALL_CHUNK_BYTES_MAX
    assert next_chunk_bytes(10 * CHUNK_BYTES_MAX) == CHUNK_BYTES_MAX


def test_only_large_chunks_are_preallocated() -> None:
    assert ahead_bytes(SMALL_CHUNK_BYTES_MAX) == 0
    assert ahead_bytes(2 * SMALL_CHUNK_BYTES_MAX) == SMALL_CHUNK_BYTES_MAX
    assert ahead_bytes(10 * CHUNK_BYTES_MAX) == CHUNK_BYTES_MAX // 2


def test_small_log_allocates_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []

    def counted(self: RealFile, at: int, length_bytes: int, *, real: AllocateFn = RealFile.allocate) -> None:
        taken.append(length_bytes)
        real(self, at, length_bytes)

    monkeypatch.setattr(RealFile, "allocate", counted)
    log = create_log(Disk(), tmp_path / "epoch", segment_bytes=64 * MIB)
    for _ in range(20):
        append(log, [batch(b"x" * 100_000)])
    log.close()
    assert len(taken) == 3, taken  # the first chunk, then with the first and the fifth batch


def test_a_log_grows_ahead_on_real_files(tmp_path: Path) -> None:
    preallocator = IoWorkers(1, name="preallocate")
    log = create_log(Disk(preallocator=preallocator), tmp_path / "epoch", segment_bytes=4 * CHUNK_BYTES_MIN)
    batches: list[bytes] = []
    for _ in range(100):
        batches += append(log, [batch(b"x" * 2000)])
    assert read_all(log) == batches
    log.sync()
    preallocator.close()
    log.close()
    newest = max((tmp_path / "epoch").glob("*.seg"))
    assert newest.stat().st_size <= 4 * CHUNK_BYTES_MIN
