from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from tests.broker.storage.build import PARTITION, TOPIC_ID, append, batch, read_all

from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.epoch_log import EpochLog
from tidelog_broker.storage.preallocate import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Preallocator, next_chunk_bytes


def test_chunks_double_within_bounds() -> None:
    assert next_chunk_bytes(0) == CHUNK_BYTES_MIN
    assert next_chunk_bytes(10 * CHUNK_BYTES_MIN) == 10 * CHUNK_BYTES_MIN
    assert next_chunk_bytes(10 * CHUNK_BYTES_MAX) == CHUNK_BYTES_MAX


def test_requests_run_in_order_on_another_thread_and_close_waits_for_them() -> None:
    preallocator = Preallocator()
    seen: list[tuple[int, int]] = []

    def note(number: int) -> None:
        seen.append((number, threading.get_ident()))

    for number in range(20):
        assert preallocator.request(partial(note, number))
    preallocator.close()
    assert [number for number, _ in seen] == list(range(20))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert not preallocator.request(lambda: None)
    preallocator.close()


def test_a_full_queue_declines() -> None:
    preallocator = Preallocator()
    gate = threading.Event()

    def wait() -> None:
        gate.wait()

    declined = False
    for _ in range(2000):
        declined = declined or not preallocator.request(wait)
    gate.set()
    preallocator.close()
    assert declined


def test_a_log_grows_ahead_on_real_files(tmp_path: Path) -> None:
    preallocator = Preallocator()
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
