"""Payloads of the benchmarks: Arrow columns of random values, the same for product and probe.

A few distinct batches are used in turn, which together exceed a core's caches, so that neither side reads from the
caches. Values are random bytes, so that the data does not compress.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidelog_loadtest.measure.runs import Run
from tidelog_loadtest.probe.client import ArrowPayload, Payload, payload_of
from tidelog_proto.batch.gathered_batch import encode_gathered
from tidelog_proto.batch.record_batch import encode_batch

DISTINCT_BATCHES = 16


def value_batches(size_bytes: int, batch_records: int, *, count: int = DISTINCT_BATCHES) -> list[pa.RecordBatch]:
    """Return `count` record batches of `batch_records` values of `size_bytes` random bytes each."""
    random = np.random.default_rng(20130101)
    offsets = np.arange(batch_records + 1, dtype=np.int32) * size_bytes
    batches = []
    for _ in range(count):
        data = random.bytes(size_bytes * batch_records)
        values = pa.Array.from_buffers(
            pa.binary(), batch_records, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
        )
        batches.append(pa.record_batch({"value": values}))
    return batches


def encoded(batches: Sequence[pa.RecordBatch]) -> list[Payload]:
    """Return the batches as payloads of the probe, encoded once with the product's encoding."""
    now_us = time.time_ns() // 1_000
    payloads = []
    for columns in batches:
        batch = encode_batch(columns, now_us=now_us)
        payloads.append(payload_of(batch.header, memoryview(batch.body), batch.record_count))
    return payloads


def to_encode(batches: Sequence[pa.RecordBatch]) -> list[ArrowPayload]:
    """Return the batches as payloads that the probe serializes when it sends them."""
    return [
        ArrowPayload(bytes(payload.parts[0]), columns, payload.records, payload.length_bytes)
        for columns, payload in zip(batches, encoded(batches), strict=True)
    ]


def encoding_run(batches: Sequence[pa.RecordBatch], *, seconds: float) -> Run:
    """Encode batches repeatedly for about `seconds`: shows the cost of the codec."""
    run = Run()
    run.begin()
    deadline_s = time.perf_counter() + seconds
    while time.perf_counter() < deadline_s:
        for columns in batches:
            began_ns = time.perf_counter_ns()
            now_us = began_ns // 1_000
            batch = encode_gathered([columns], now_us=now_us) or encode_batch(columns, now_us=now_us)
            run.add(batch.record_count, batch.length, time.perf_counter_ns() - began_ns)
    run.end()
    return run
