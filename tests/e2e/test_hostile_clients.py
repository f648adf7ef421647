"""A node as its own process, and clients that send invalid data or read nothing: it continues to serve the others.

The limit applies to the process's memory, as the kernel counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import struct
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.broker.peer import Peer, batch, connected
from tests.proto.batches import arrow_body, batch_of

from tidelog import Client
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec, Flags
from tidelog_proto.limits import BATCH_BYTES_MAX, BATCH_UNCOMPRESSED_BYTES_MAX, FRAME_BYTES_MAX, MIB, PROTOCOL_VERSION

pytestmark = pytest.mark.e2e

STOP_TIMEOUT_S = 30
BOMB_BYTES = 240 * MIB
GARBAGE = {
    "text": b"GET / HTTP/1.1\r\nhost: node\r\n\r\n",
    "zeros": bytes(64),
    "zero length": struct.pack("<II", 0, 1),
    "an envelope of zero length": struct.pack("<II", 4, 0),
    "an envelope longer than its frame": struct.pack("<II", 16, 4096) + bytes(12),
    "a frame beyond every limit": struct.pack("<II", 2**32 - 1, 16),
    "no protobuf": struct.pack("<II", 12, 8) + b"\xff" * 8,
}


class RealNode:
    """A node process and its memory according to the kernel."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        ready = json.loads(process.stdout.readline())
        self.port: int = ready["port"]
        self._metrics_url = f"http://127.0.0.1:{ready['management_port']}/metrics"

    def peak_bytes(self) -> int:
        """Return the most memory that the process has ever had."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024

    async def counted(self, line: str) -> None:
        """Wait until the node's metrics have this line."""

        def metrics() -> list[str]:
            with urllib.request.urlopen(self._metrics_url) as reply:
                return bytes(reply.read()).decode().splitlines()

        async with asyncio.timeout(30):
            while line not in await asyncio.to_thread(metrics):  # noqa: ASYNC110 - metrics have no event
                await asyncio.sleep(0.05)


@contextlib.contextmanager
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealNode]:
    """Run a node that is configured by variables, and hold its end against a clean one."""
    monkeypatch.setenv("TIDELOG_NODE_DATA", str(tmp_path / "data"))
    command = [sys.executable, "-m", "tidelog_cli", "node", "--port", "0", "--management-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield RealNode(process)
            process.terminate()
            _, said = process.communicate(timeout=STOP_TIMEOUT_S)
            assert (process.returncode, "Traceback" in said) == (0, False), said
        finally:
            process.kill()


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealNode]:
    monkeypatch.setenv("TIDELOG_NODE_WRITE_STALL_MS", "300")
    monkeypatch.setenv("TIDELOG_NODE_RING_BYTES", str(64 * MIB))
    with running(tmp_path, monkeypatch) as started:
        yield started


def bomb(codec: Codec) -> bytes:
    """Return a body far below the limit that would become BOMB_BYTES of zeros."""
    zeros = pa.array([bytes(BOMB_BYTES)], pa.binary())
    if codec in {Codec.LZ4, Codec.ZSTD}:
        return bytes(memoryview(arrow_body(codec, value=zeros)))
    message = arrow_body(value=zeros)
    if codec is Codec.GZIP:
        return zlib.compress(message, 1, 31)
    return bytes(memoryview(pa.Codec("snappy").compress(message)))


@pytest.mark.long
async def test_a_decompression_bomb_is_refused_and_takes_no_memory(node: RealNode) -> None:
    async with connected(node.port) as peer:
        topic_id = (await peer.create()).topic_id
        await peer.publish(topic_id, batch(bytes(MIB), codec=Codec.ZSTD))
        before_bytes = node.peak_bytes()
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
            body = bomb(codec)
            assert len(body) < BATCH_BYTES_MAX
            for claimed in (len(body), BATCH_UNCOMPRESSED_BYTES_MAX):
                armed = batch_of(body, int(Flags.VALUE), 1, codec=codec, uncompressed_length=claimed)
                (result,) = await peer.publish(topic_id, armed)
                assert result.error.code == pb.CORRUPT_BATCH, codec
        # Maximum decoded size of an honest body, and of frames in flight; a decoded bomb is larger.
        assert node.peak_bytes() - before_bytes < BATCH_UNCOMPRESSED_BYTES_MAX + 6 * BATCH_BYTES_MAX < BOMB_BYTES
        (good,) = await peer.publish(topic_id, batch(b"good"))
        assert good.base_offset == 1


@pytest.mark.long
async def test_a_client_that_never_reads_is_cut_off_and_takes_bounded_memory(node: RealNode) -> None:
    """A client requests gigabytes and reads nothing of them, while another one is served."""
    async with Client(f"127.0.0.1:{node.port}") as client, connected(node.port) as peer:
        await client.create_topic("t", flush="never")
        topic_id = (await client.topic("t")).topic_id
        for _ in range(40):
            await peer.publish(topic_id, batch(bytes(MIB)))
        before_bytes = node.peak_bytes()
        deaf = [await Peer.connect(node.port, reading=False) for _ in range(4)]
        for one in deaf:
            one.post(hello=pb.Hello(version=PROTOCOL_VERSION, client_id="deaf"))
            for _ in range(64):
                one.post_fetch(topic_id, max_bytes=FRAME_BYTES_MAX // 2)
        async with client.producer("t") as producer:
            assert (await producer.send(b"meanwhile")).offset == 40
        await node.counted(f"tidelog_stalled_clients_total {len(deaf)}.0")
        for one in deaf:
            one.writer.transport.abort()
        assert node.peak_bytes() - before_bytes < 64 * 4 * MIB


async def test_garbage_ends_its_connection_and_nothing_else(node: RealNode) -> None:
    async with connected(node.port) as peer:
        topic_id = (await peer.create()).topic_id
        for at, (what, garbage) in enumerate(GARBAGE.items()):
            async with connected(node.port) as stranger:
                stranger.send_raw(garbage)
                await stranger.closed()
            (stored,) = await peer.publish(topic_id, batch(b"good"))
            assert stored.base_offset == at, what
