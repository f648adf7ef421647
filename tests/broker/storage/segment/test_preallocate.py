from __future__ import annotations

from pathlib import Path

from tests.broker.storage.build import PARTITION, TOPIC_ID, append, batch, read_all

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.preallocate import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, next_chunk_bytes


def test_chunks_double_within_bounds() -> None:
    assert next_chunk_bytes(0) == CHUNK_BYTES_MIN
    assert next_chunk_bytes(10 * CHUNK_BYTES_MIN) == 10 * CHUNK_BYTES_MIN
    assert next_chunk_bytes(10 * CHUNK_BYTES_MAX) == CHUNK_BYTES_MAX


def test_a_log_grows_ahead_on_real_files(tmp_path: Path) -> None:
    preallocator = IoWorkers(1, name="preallocate")
    log = EpochLog.create(
        Disk(preallocator=preallocator),
        tmp_path / "epoch",
        topic_id=TOPIC_ID,
        partition=PARTITION,
        epoch=0,
        start_offset=0,
        segment_bytes=4 * CHUNK_BYTES_MIN,
    )
    batches: list[bytes] = []
    for _ in range(100):
        batches += append(log, [batch(b"x" * 2000)])
    assert read_all(log) == batches
    log.sync()
    preallocator.close()
    log.close()
    newest = max((tmp_path / "epoch").glob("*.seg"))
    assert newest.stat().st_size <= 4 * CHUNK_BYTES_MIN
