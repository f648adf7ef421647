"""A node as its own process, and many clients that request everything and read nothing: its memory is bounded.

The limit applies to the process's anonymous memory, as the kernel counts it.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.broker.peer import Peer, batch, connected
from tests.e2e.test_hostile_clients import RealNode, running

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB, PROTOCOL_VERSION

pytestmark = pytest.mark.e2e

BUDGET_BYTES = 128 * MIB
CLIENTS = 48
SUBSCRIPTIONS = 40


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealNode]:
    monkeypatch.setenv("TIDELOG_NODE_NODE_OUTGOING_BYTES", str(BUDGET_BYTES))
    monkeypatch.setenv("TIDELOG_NODE_WRITE_STALL_MS", "4000")
    monkeypatch.setenv("TIDELOG_NODE_RING_BYTES", "0")  # records are read for each of them, and not shared
    with running(tmp_path, monkeypatch) as started:
        yield started


def anonymous_bytes(node: RealNode) -> int:
    found = re.search(r"^RssAnon:\s+(\d+) kB$", Path(f"/proc/{node.process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


async def deaf_client(port: int) -> Peer:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    peer = Peer(*await asyncio.open_connection(sock=raw, limit=4096))
    peer.post(hello=pb.Hello(version=PROTOCOL_VERSION, client_id="deaf"))
    return peer


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's word is in /proc")
async def test_thousands_of_unread_subscriptions_stay_within_the_budget(node: RealNode) -> None:
    """They ping without reading: pings do not prove that a client reads."""
    async with connected(node.port) as peer:
        topic_id = (await peer.create(flush=pb.NEVER)).topic_id
        for _ in range(40):
            await peer.publish(topic_id, batch(bytes(MIB)))
        before_bytes = most_bytes = anonymous_bytes(node)
        deaf = [await deaf_client(node.port) for _ in range(CLIENTS)]
        entry = pb.SubscribeEntry(topic_id=topic_id)
        for one in deaf:
            for number in range(SUBSCRIPTIONS):
                asked = pb.Subscribe(subscription_id=number, entries=[entry], credit_records=2**40, credit_bytes=2**50)
                one.post(subscribe=asked)
        gone = asyncio.create_task(node.counted(f"tidelog_stalled_clients_total {CLIENTS}.0"))
        while not gone.done():
            for one in deaf:
                if not one.writer.is_closing():
                    one.post(metadata=pb.Metadata(topics=["t"]))
            assert len(await peer.fetch(topic_id, 0, max_bytes=MIB)) > 0, "another client is not served"
            most_bytes = max(most_bytes, anonymous_bytes(node))
            await asyncio.sleep(0.05)
        await gone
        for one in deaf:
            one.writer.transport.abort()
        assert most_bytes - before_bytes <= 1.25 * BUDGET_BYTES
