"""Measures what indexes of keys and tags cost a publish, and how fast a record is found by its key, over a real node.

    python -m tests.clients.measure_indexed_publish DIRECTORY [--seconds 2] [--rounds 5] [--records 10000000]

A node in a process of its own; one producer sends Arrow batches of 1,000 records with values of 100 random bytes, keys
of 16 bytes that differ in a batch, and one of ten tags, to a topic with indexes and to one without, in turns. With
--records so many records with different keys are published to another topic, and then looked for by `Client.get`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from tests.broker.peer import connected
from tests.clients.test_real_node import RealNode

from tidelog import Client

BATCH_RECORDS = 1000
BATCHES = 64


def key_of(number: int) -> bytes:
    return b"user-%011d" % (number * 7_368_787 % 99_999_989)


def batch_of(first: int, values: list[bytes]) -> pa.RecordBatch:
    keys = [key_of(number) for number in range(first, first + BATCH_RECORDS)]
    tags = [f"tag-{number % 10}" for number in range(BATCH_RECORDS)]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values), "tag": pa.array(tags)})


async def publish(client: Client, topic: str, batches: list[pa.RecordBatch], seconds: float) -> float:
    """Return records per second."""
    sent, begun = 0, time.perf_counter()
    async with client.producer(topic) as producer:
        while time.perf_counter() - begun < seconds:
            for columns in batches:
                await producer.enqueue_arrow(columns, partition=0)
                sent += columns.num_rows
    return sent / (time.perf_counter() - begun)


async def measure_publishing(client: Client, batches: list[pa.RecordBatch], seconds: float, rounds: int) -> None:
    rates: dict[str, list[float]] = {"plain": [], "indexed": []}
    for number in range(rounds + 1):
        for topic in ("plain", "indexed") if number % 2 else ("indexed", "plain"):
            rate = await publish(client, topic, batches, seconds)
            if number:  # the first round warms up
                rates[topic].append(rate)
    for topic, found in rates.items():
        told = ", ".join(f"{rate / 1e6:.2f}" for rate in found)
        sys.stdout.write(f"{topic:10} {statistics.median(found) / 1e6:.2f} M records/s ({told})\n")
    share = statistics.median(rates["indexed"]) / statistics.median(rates["plain"])
    sys.stdout.write(f"with indexes {share:.2f} of without\n")


async def measure_finding(client: Client, count: int, values: list[bytes]) -> None:
    async with client.producer("found") as producer:
        for first in range(0, count, BATCH_RECORDS):
            await producer.enqueue_arrow(batch_of(first, values), partition=0)
    await asyncio.sleep(5)  # the thread finishes what was rolled last
    random = Random(1)
    for what, wanted in (
        ("existing keys", [key_of(random.randrange(count)) for _ in range(2000)]),
        ("keys that are not", [b"nobody-%d" % number for number in range(2000)]),
    ):
        times: list[float] = []
        for key in wanted:
            begun = time.perf_counter()
            record = await client.get("found", key)
            times.append(time.perf_counter() - begun)
            assert (record is not None) == what.endswith("there")
        times.sort()
        sys.stdout.write(
            f"get of {what}, of {count:,}: p50 {times[len(times) // 2] * 1e6:.0f} us, "
            f"p99 {times[len(times) * 99 // 100] * 1e6:.0f} us\n"
        )


async def run(port: int, arguments: argparse.Namespace) -> None:
    async with connected(port) as peer:
        await peer.create("plain", flush=3)
        await peer.create("indexed", flush=3, index_key=True, index_tag=True)
        await peer.create("found", flush=3, index_key=True)
    raw = np.random.default_rng(1).bytes(100 * BATCH_RECORDS)
    values = [raw[at : at + 100] for at in range(0, len(raw), 100)]
    async with Client(f"127.0.0.1:{port}") as client:
        if arguments.records:
            await measure_finding(client, arguments.records, values)
        else:
            batches = [batch_of(number * BATCH_RECORDS, values) for number in range(BATCHES)]
            await measure_publishing(client, batches, arguments.seconds, arguments.rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=0)
    arguments = parser.parse_args()
    node = RealNode(arguments.directory)
    node.start()
    try:
        asyncio.run(run(node.port, arguments))
    finally:
        node.stop()


if __name__ == "__main__":
    main()
