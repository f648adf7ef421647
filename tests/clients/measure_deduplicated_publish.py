"""Measures what it costs a publish that duplicates are dropped, over a real node.

    python -m tests.clients.measure_deduplicated_publish DIRECTORY [--rounds 4]

A node in a process of its own; one producer sends Arrow batches of 1,000 and of 10,000 records, each a value of 100
random bytes, to a topic that drops nothing, to two that do (windows of 100,000 and of 1,000,000 records), and the same
batches once more to the last, all of them duplicates. Every round has new topics and new values; flush is never.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from tests.clients.test_real_node import RealNode

from tidelog import Client

RECORDS = {1_000: 200, 10_000: 60}
"""Records per batch -> number of batches."""
VALUE_BYTES = 100
WINDOWS = {"drops nothing": 0, "of 100,000": 100_000, "of 1,000,000": 1_000_000}


def batch_of(records: int, random: np.random.Generator) -> pa.RecordBatch:
    offsets = np.arange(0, (records + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(random.bytes(records * VALUE_BYTES))]
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), records, buffers)], names=["value"])


async def publish(client: Client, topic: str, batches: list[pa.RecordBatch]) -> float:
    """Return records per second."""
    begun = time.perf_counter()
    async with client.producer(topic) as producer:
        for columns in batches:
            await producer.enqueue_arrow(columns, partition=0)
    return sum(columns.num_rows for columns in batches) / (time.perf_counter() - begun)


async def measure(address: str, rounds: int) -> None:
    random = np.random.default_rng(0)
    async with Client(address) as client:
        for records, count in RECORDS.items():
            rates: dict[str, list[float]] = {}
            for _ in range(rounds):
                batches = [batch_of(records, random) for _ in range(count)]
                for number, (name, window) in enumerate(WINDOWS.items()):
                    topic = f"t{number}"
                    await client.create_topic(topic, flush="never", deduplicate_records=window)
                    rates.setdefault(name, []).append(await publish(client, topic, batches))
                    if number == len(WINDOWS) - 1:
                        rates.setdefault("all duplicates", []).append(await publish(client, topic, batches))
                    await client.delete_topic(topic)
            for name, found in rates.items():
                told = f"{statistics.median(found):,.0f} records/s, {1e6 / statistics.median(found):.2f} µs a record"
                sys.stdout.write(f"{records:,} a batch, {name}: {told}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what it costs a publish that duplicates are dropped.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    arguments = parser.parse_args()
    node = RealNode(arguments.directory / "node")
    node.start()
    try:
        asyncio.run(measure(f"127.0.0.1:{node.port}", arguments.rounds))
    finally:
        node.stop()


if __name__ == "__main__":
    main()
