"""Nodes as processes with topics in RocksDB: kills, a full disk, a missing package and a lock of another process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
from tests.broker.peer import Peer, batch, connected
from tests.e2e.test_crash import PARTITIONS, Load, check, end, ready, start, stored
from tests.e2e.test_full_disk import NAMESPACE

from tidelog import Client, TidelogError
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto import broker_pb2 as pb

pytestmark = pytest.mark.e2e

DISK = "48m"
SCRIPT = f"""
set -e
mount -t tmpfs -o size={DISK} tmpfs "$1"
exec "$0" -m tidelog_cli node --data "$1/data" --port 0 --management-port 0
"""
HOLD = """
import sys, rocksdict
held = rocksdict.Rdict(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_NODE_ROCKSDB_PRESET", "small")


@pytest.mark.parametrize("flush", ["always", pytest.param("never", marks=pytest.mark.long)])
async def test_killed_again_and_again_under_load(tmp_path: Path, flush: str) -> None:
    """The same producers continue over every kill; in the end each record that they sent exists once, in order."""
    data, port, rng = tmp_path / "data", free_ports(1)[0], random.Random(flush)
    process = start(data, port=port)
    await asyncio.to_thread(ready, process)
    try:
        async with Client(f"127.0.0.1:{port}", request_timeout_s=60) as client:
            await client.create_topic("t", partitions=PARTITIONS, flush=flush, engine="rocksdb")  # type: ignore[arg-type]
            loads = [Load(client, name) for name in ("a", "b", "c")]
            running = [asyncio.create_task(load.run()) for load in loads]
            for _ in range(3):
                target = sum(len(load.acknowledged) for load in loads) + rng.randint(100, 600)
                while sum(len(load.acknowledged) for load in loads) < target:
                    assert not any(task.done() for task in running), "a load has failed"
                    await asyncio.sleep(0.001)  # the kill waits for acknowledgements, which have no event
                await asyncio.to_thread(end, process, signal.SIGKILL)
                process = start(data, port=port)
                await asyncio.to_thread(ready, process)
            for load in loads:
                load.stopping = True
            await asyncio.gather(*running)
            values = await stored(client)
        check(values, loads)
        assert sum(map(len, values.values())) == sum(load.sent for load in loads)
        code, errors = await asyncio.to_thread(end, process)
        assert (code, "Traceback" in errors, "ERROR" in errors) == (0, False, False), errors
    finally:
        if process.returncode is None:
            await asyncio.to_thread(end, process, signal.SIGKILL)


@contextlib.asynccontextmanager
async def node(data: Path, port: int) -> AsyncIterator[None]:
    """Run a node; it must stop cleanly at the end of the block."""
    process = start(data, port=port)
    try:
        await asyncio.to_thread(ready, process)
        yield
        code, errors = await asyncio.to_thread(end, process)
        assert (code, "Traceback" in errors) == (0, False), errors
    finally:
        if process.returncode is None:
            await asyncio.to_thread(end, process, signal.SIGKILL)


async def written(data: Path, port: int) -> None:
    """Store a record in a topic of each engine, and stop the node."""
    async with node(data, port), Client(f"127.0.0.1:{port}") as client:
        for engine in ("segment", "rocksdb"):
            await client.create_topic(engine, engine=engine)
            async with client.producer(engine) as producer:
                await producer.send(b"kept")


async def values(client: Client, topic: str) -> list[bytes | None]:
    return [value for one in (await client.fetch(topic, 0, 0)).batches for value in one.values()]


async def check_unavailable(port: int, why: str) -> None:
    """Check that the topic in RocksDB is unavailable for a reason, and the other one works."""
    async with Client(f"127.0.0.1:{port}", request_timeout_s=5) as client:
        async with client.producer("segment") as producer:
            await producer.send(b"more")
        assert await values(client, "segment") == [b"kept", b"more"]
        with pytest.raises(TidelogError, match=why):
            await client.fetch("rocksdb", 0, 0)


async def test_node_without_the_package_serves_all_other_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, port = tmp_path / "data", free_ports(1)[0]
    await written(data, port)
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "rocksdict.py").write_text("raise ImportError('No module named rocksdict')\n")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "without"))
        async with node(data, port):
            await check_unavailable(port, r"engine rocksdb is not installed: .*pip install 'tidelog\[rocksdb\]'")
    await check_kept(data, port)


async def check_kept(data: Path, port: int) -> None:
    async with node(data, port), Client(f"127.0.0.1:{port}") as client:
        assert await values(client, "rocksdb") == [b"kept"]


def holding(database: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(database)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def test_lock_of_another_process_makes_only_its_topics_unavailable(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_ports(1)[0]
    await written(data, port)
    with holding(data / "engines" / "rocksdb" / "db") as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            async with node(data, port):
                await check_unavailable(port, r"another process has .* open: .*restart the node")
        finally:
            holder.kill()
    await check_kept(data, port)


async def test_corrupt_manifest_makes_only_its_topics_unavailable(tmp_path: Path) -> None:
    data, port = tmp_path / "data", free_ports(1)[0]
    await written(data, port)
    (manifest,) = (data / "engines" / "rocksdb" / "db").glob("MANIFEST-*")
    whole = manifest.read_bytes()
    manifest.write_bytes(bytes(byte ^ 0xFF for byte in whole))
    async with node(data, port):
        await check_unavailable(port, r"engine rocksdb cannot be used: .*restore .* from a backup")
    manifest.write_bytes(whole)
    await check_kept(data, port)


@pytest.fixture
def node_on_small_disk(tmp_path: Path, small: None) -> Iterator[subprocess.Popen[str]]:
    try:
        subprocess.run([*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace may be made here: {error}")
    command = [*NAMESPACE, "sh", "-c", SCRIPT, sys.executable, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


async def publish_until_full(peer: Peer, topic_id: bytes) -> tuple[list[bytes], pb.Error]:
    values: list[bytes] = []
    while True:
        value = os.urandom(100_000)
        (result,) = await peer.publish(topic_id, batch(value))
        if result.HasField("error"):
            if result.error.code == pb.OVERLOADED:  # RocksDB is slower than this loop.
                continue
            return values, result.error
        values.append(value)


async def test_full_disk_refuses_writes_keeps_records_and_recovers_with_free_space(
    node_on_small_disk: subprocess.Popen[str],
) -> None:
    node = node_on_small_disk
    assert node.stdout is not None
    port = json.loads(await asyncio.to_thread(node.stdout.readline))["port"]
    async with connected(port) as peer:
        topics = [(await peer.create(name, engine="rocksdb")).topic_id for name in ("filler", "kept")]
        filler, kept = topics
        values, error = await publish_until_full(peer, filler)
        assert (error.code, error.retriable, error.definite) == (pb.DISK_FULL, True, True)
        assert len(values) > 50
        assert await peer.read_all(filler) == values
        await peer.delete("filler")
        async with asyncio.timeout(60):
            stored = pb.PublishResult(error=error)
            while stored.HasField("error"):  # the space is reclaimed in the background
                assert stored.error.code in {pb.DISK_FULL, pb.OVERLOADED}, stored.error
                (stored,) = await peer.publish(kept, batch(b"room again" * 10_000))
        again: list[bytes] = []
        async with asyncio.timeout(60):
            while len(again) <= 50:  # the rest of it, too
                more, error = await publish_until_full(peer, kept)
                assert error.code == pb.DISK_FULL
                again += more
        assert await peer.read_all(kept) == [b"room again" * 10_000, *again]
    psutil.Process(node.pid).terminate()
    _, errors = await asyncio.to_thread(node.communicate, timeout=60)
    assert node.returncode == 0, errors
    assert "Traceback" not in errors
