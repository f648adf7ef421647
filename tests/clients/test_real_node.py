"""The client against a real node in a separate process, killed and restarted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest
from tests.clients.compacted_topics import create_compacted

from tidelog import Client, Compacted, Record, TopicPartition, sync
from tidelog.errors import InvalidRequestError, OffsetOutOfRangeError, TopicExistsError, UnsupportedBatchError

pytestmark = pytest.mark.e2e


class RealNode:
    """A node process on one data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tidelog_cli", "node", "--data", str(self._data)]
        command += ["--port", str(self.port), "--management-port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the node ended before it was ready"
        self.port = json.loads(line)["port"]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def real_node(tmp_path: Path) -> Iterator[RealNode]:
    node = RealNode(tmp_path / "data")
    node.start()
    yield node
    node.stop()


async def test_publish_fetch_consume_and_commit_work(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        await client.create_topic("flights", partitions=3)
        with pytest.raises(TopicExistsError):
            await client.create_topic("flights")
        producer = client.producer("flights", compression="zstd")
        values = [b"%05d" % number for number in range(5000)]
        keys = [b"%d" % (number % 50) for number in range(5000)]
        receipts = await producer.send_many(values, keys=keys)
        fetched = await client.fetch("flights", receipts[7].partition, receipts[7].offset)
        assert fetched.batches[0].values()[0] == values[7]
        with pytest.raises(OffsetOutOfRangeError):
            await client.fetch("flights", 0, 10**6)
        async with client.consumer("flights", group="g") as consumer:
            seen = [await anext(consumer) for _ in range(5000)]
            assert sorted(record.value or b"" for record in seen) == values
            held = await consumer.commit()
            assert sum(each.next_offset for each in held.values()) == 5000
        latest = await client.list_offsets("flights", "latest")
        assert {each.partition: each.next_offset for each in await client.committed("g")} == {
            partition: offset.offset for partition, offset in latest.items()
        }


@pytest.mark.long
async def test_acknowledged_records_are_stored_once_across_kills(real_node: RealNode) -> None:
    """Kill -9 during publishing, three times; the producer continues."""
    address = f"127.0.0.1:{real_node.port}"
    async with Client(address) as client:
        await client.create_topic("t")
        producer = client.producer("t", batch_bytes=4096)
        acknowledged = asyncio.Event()

        async def publish() -> list[int]:
            offsets = []
            for at in range(60):
                receipts = await producer.send_many([b"%06d" % number for number in range(at * 500, at * 500 + 500)])
                offsets += [receipt.offset for receipt in receipts]
                acknowledged.set()
            return offsets

        publishing = asyncio.ensure_future(publish())
        for _ in range(3):
            acknowledged.clear()
            waiting = asyncio.ensure_future(acknowledged.wait())
            await asyncio.wait([publishing, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await asyncio.to_thread(real_node.stop, signal.SIGKILL)
            await asyncio.to_thread(real_node.start)
        assert await publishing == list(range(30_000))
        async with client.consumer("t") as consumer:
            stored = [(await anext(consumer)).value for _ in range(30_000)]
        assert stored == [b"%06d" % number for number in range(30_000)]
        assert (await client.list_offsets("t", "latest"))[0].offset == 30_000


@pytest.mark.long
async def test_consumer_survives_a_node_restart(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        await client.create_topic("t")
        await client.producer("t").send_many([b"1", b"2"])
        async with client.consumer("t") as consumer:
            assert [(await anext(consumer)).value for _ in range(2)] == [b"1", b"2"]
            await asyncio.to_thread(real_node.stop)
            await asyncio.to_thread(real_node.start)
            await client.producer("t").send_many([b"3", b"4"])
            assert [(await anext(consumer)).value for _ in range(2)] == [b"3", b"4"]


def test_blocking_client_works(real_node: RealNode) -> None:
    with sync.Client(f"127.0.0.1:{real_node.port}") as client:
        client.create_topic("t", partitions=2, flush="never")
        client.producer("t").send_many([b"%d" % number for number in range(100)])
        with client.consumer("t", group="g") as consumer:
            assert len({next(consumer).value for _ in range(100)}) == 100
            consumer.commit()
        assert sum(each.next_offset for each in client.committed("g")) == 100


@pytest.mark.long
async def test_patterns_manual_assignment_and_seek_work(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        for name in ("orders.eu", "orders.us", "other", "dead"):
            await client.create_topic(name, partitions=2, index_key=True, flush="never")
        sent = {name: [b'{"n": %d}' % number for number in range(3000)] for name in ("orders.eu", "orders.us", "other")}
        for name, values in sent.items():
            await client.producer(name).send_many(values, keys=[b"%d" % (number % 10) for number in range(3000)])
        async with client.consumer(
            pattern=r"orders\..*", group="g", partitions="all", value_deserializer="json", prefetch_bytes=20_000
        ) as consumer:
            assert {where.topic for where in consumer.assignment()} == {"orders.eu", "orders.us"}
            seen: dict[str, list[int]] = {"orders.eu": [], "orders.us": []}
            while sum(map(len, seen.values())) < 6000:
                for record in await consumer.poll():
                    seen[record.topic].append(record.value["n"])
            assert {name: sorted(numbers) for name, numbers in seen.items()} == {
                name: list(range(3000)) for name in seen
            }
            held = await consumer.commit()
            assert sum(each.next_offset for each in held.values()) == 6000
        async with client.consumer(group="g") as consumer:
            there, other = TopicPartition("orders.eu", 0), TopicPartition("other", 1)
            await consumer.assign({there: None, other: 5})
            assert consumer.position() == {there: held[there].next_offset, other: 5}
            assert (await anext(consumer)).offset == 5
            consumer.pause(other)
            newest = [record async for record in _until_end(client, "orders.eu", 0) if record.key == b"7"]
            found = await consumer.seek_to_key(there, b"7")
            assert found == bool(newest)
            if newest:
                assert (await anext(consumer)).offset == newest[-1].offset
            await consumer.seek(there, datetime(2013, 1, 1, tzinfo=UTC))
            assert consumer.position()[there] == 0
            await consumer.unassign([there])
            consumer.resume(other)
            assert (await anext(consumer)).offset == 6


async def _until_end(client: Client, topic: str, partition: int) -> AsyncIterator[Record]:
    end = (await client.list_offsets(topic, "latest", [partition]))[partition].offset
    async with client.consumer(topic, partitions=[partition]) as consumer:
        async for record in consumer:
            yield record
            if record.offset == end - 1:
                return


@pytest.mark.long
async def test_undecodable_record_is_published_to_the_dead_letter_topic(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        for name in ("t", "dead"):
            await client.create_topic(name)
        await client.producer("t").send_many([b"1", b"one", b"2"])
        async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
            assert [(await anext(consumer)).value for _ in range(2)] == [1, 2]
        (dead,) = (await client.fetch("dead", 0, 0)).batches
        assert dead.values() == [b"one"]
        assert dict(dead.headers()[0])["tidelog-offset"] == b"1"


@pytest.mark.long
async def test_records_are_found_by_key_and_tag(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        await client.create_topic("t", partitions=3)
        keys = [b"%d" % (number % 50) for number in range(2000)]
        tags = ["even" if number % 2 == 0 else None for number in range(2000)]
        values = [b"%05d" % number for number in range(2000)]
        await client.producer("t").send_arrow(pa.RecordBatch.from_pydict({"value": values, "key": keys, "tag": tags}))
        await client.producer("t").send(None, key=b"7")
        mine = [value for value, key in zip(values, keys, strict=True) if key == b"12"]
        found: list[bytes | None] = []
        async with client.consumer("t", group="g", key=b"12", tag="even") as consumer:
            while len(found) < len(mine):
                found.append((await anext(consumer)).value)
        assert found == mine
        text: Any = "12"
        with pytest.raises(TypeError, match="key must be bytes, got str: '12'; pass b'12'"):
            await client.get("t", text)
        newest = await client.get("t", b"12")
        assert newest is not None
        assert (newest.value, newest.key, newest.tag) == (mine[-1], b"12", "even")
        fetched = await client.fetch("t", newest.partition, 0, key=b"12")
        assert [value for batch in fetched.batches for value in batch.values()] == mine
        assert (await client.fetch("t", newest.partition, 0, tag="odd", min_bytes=1, wait_ms=100)).batches == []
        tombstone = await client.get("t", b"7")
        assert tombstone is not None
        assert tombstone.value is None
        assert await client.get("t", b"nobody") is None
        assert await client.get("t", b"12", partition=(newest.partition + 1) % 3) is None
        with pytest.raises(InvalidRequestError, match="4096"):
            client.consumer("t", tag="t" * 4097)


@pytest.mark.long
async def test_positions_of_a_filtered_consumer_reach_the_end(real_node: RealNode) -> None:
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        await client.create_topic("t")
        await client.producer("t").send_many([b"%d" % number for number in range(500)], keys=[b"a"] * 500)
        async with client.consumer("t", key=b"b") as consumer:
            batch = await consumer.next_batch()
            assert batch is not None
            assert (len(batch), batch.batch.end_offset) == (0, 500)


@pytest.mark.long
def test_blocking_client_finds_by_key(real_node: RealNode) -> None:
    with sync.Client(f"127.0.0.1:{real_node.port}") as client:
        client.create_topic("t")
        client.producer("t").send_many([b"1", b"2", b"3"], keys=[b"a", b"b", b"a"])
        with client.consumer("t", key=b"a") as consumer:
            assert [next(consumer).offset for _ in range(2)] == [0, 2]
        assert [len(batch) for batch in client.fetch("t", 0, 0, key=b"b").batches] == [1]
        newest = client.get("t", b"a")
        assert newest is not None
        assert newest.value == b"3"


@pytest.mark.long
async def test_compaction_keeps_the_latest_record_of_each_key(real_node: RealNode) -> None:
    await create_compacted(real_node.port, "prices", tombstone_retention_ms=60_000)
    async with Client(f"127.0.0.1:{real_node.port}") as client:
        producer = client.producer("prices")
        for number in range(20):
            await producer.send_many([b"a%d" % number, b"b%d" % number], keys=[b"a", b"b"])
        await producer.send(None, key=b"b")
        with pytest.raises(UnsupportedBatchError, match="key"):
            await producer.send(b"of no key")
        before = (await client.topic("prices")).partitions[0].size_bytes
        assert await client.compact_topic("prices") == {0: Compacted(41, ANY)}
        done = (await client.compact_topic("prices", [0]))[0]
        assert (done.below, 0 < done.size_bytes < before) == (41, True)
        await producer.send(b"c0", key=b"c")
        await asyncio.to_thread(real_node.stop)
        await asyncio.to_thread(real_node.start)  # batches in memory are served uncompacted
        async with client.consumer("prices") as consumer:
            found = [await anext(consumer) for _ in range(3)]
        assert [(one.offset, one.key, one.value) for one in found] == [
            (38, b"a", b"a19"),
            (40, b"b", None),
            (41, b"c", b"c0"),
        ]
        await client.create_topic("other")
        with pytest.raises(InvalidRequestError, match="not compacted by its settings"):
            await client.compact_topic("other")
