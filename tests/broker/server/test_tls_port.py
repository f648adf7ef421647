"""A native port with TLS, and clients with, without and with wrong TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from tests.authority import Authority, put
from tests.broker.metric import value_of
from tests.broker.peer import Peer
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.errors import NodeUnreachableError, UnauthenticatedError
from tidelog.tls import Tls
from tidelog_broker.base import node_tls
from tidelog_broker.node.node import Node
from tidelog_cli.certs.certificate_authority import issue
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB, PROTOCOL_VERSION
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def told(files: TlsFiles, **more: Any) -> dict[str, Any]:
    return {"tls_cert_file": files.cert, "tls_key_file": files.key, "tls_ca_file": files.ca} | more


def client_of(node: Node, tls: Tls | bool, host: str = "127.0.0.1") -> Client:
    return Client(f"{host}:{node.port}", request_timeout_s=10.0, tls=tls)


async def test_records_of_all_sizes_are_published_and_consumed(stand: Stand, authority: Authority) -> None:
    node = await stand.start(**told(authority.files("node", "a")), segment_read="mapped")
    assert not node.broker.disk.maps_reads, "a mapping is not to be looked at by the process itself"
    values = [bytes([size % 251]) * size for size in (0, 1, 100, 16_000, 17_000, 300_000, 3 * MIB)]
    async with client_of(node, Tls(str(authority.ca)), "localhost") as client:
        await client.create_topic("t", partitions=2, segment_bytes=MIB)
        async with client.producer("t") as producer:
            for _ in range(3):
                await asyncio.gather(*[producer.send(value) for value in values])
        async with client.consumer("t") as consumer:
            async with asyncio.timeout(30):
                found = [(await anext(consumer)).value for _ in range(3 * len(values))]
        assert sorted(found, key=len) == sorted(values * 3, key=len)
        assert (await client.fetch("t", 0, 0)).batches


async def test_tls_mismatch_is_reported_on_both_sides(stand: Stand, authority: Authority) -> None:
    node = await stand.start(**told(authority.files("node", "a")))
    async with client_of(node, tls=False) as plain:
        with pytest.raises(UnauthenticatedError, match="this port requires TLS"):
            await plain.connect()
    assert value_of(node, "tidelog_tls_failed_total") == 1
    await stand.stop()
    stand.settings.clear()
    node = await stand.start()
    async with client_of(node, Tls(str(authority.ca))) as encrypted:
        with pytest.raises(NodeUnreachableError, match="does not speak TLS; connect without TLS"):
            await encrypted.connect()
    await settled(lambda: value_of(node, "tidelog_connection_errors_total") == 1, "the node noticed nothing")


async def test_certificate_of_another_ca_or_host_is_rejected(
    stand: Stand, authority: Authority, tmp_path: Path
) -> None:
    node = await stand.start(**told(authority.files("node", "a", ["elsewhere.example"])))
    for tls, why in (
        (Tls(str(authority.ca)), "not valid for '127.0.0.1'"),
        (Tls(str(Authority(tmp_path / "other", "other").ca)), "its CA is not one of the trusted CAs"),
        (True, "its CA is not one of the trusted CAs"),
    ):
        async with client_of(node, tls) as client:
            with pytest.raises(NodeUnreachableError, match=why):
                await client.connect()


async def test_changed_tls_files_apply_to_new_connections(
    stand: Stand, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_tls, "FILES_LOOK_S", 0.05)
    files = authority.files("node", "a")
    assert files.cert is not None
    assert files.key is not None
    node = await stand.start(**told(files))
    async with client_of(node, Tls(str(authority.ca))) as first:
        await first.create_topic("t")
        files.key.write_bytes(b"garbage")
        before = await serial(node, authority)
        await asyncio.sleep(0.2)
        assert await serial(node, authority) == before
        put(issue(authority.made, "node", "a", ["127.0.0.1"], days=1), files.cert, files.key)
        async with asyncio.timeout(20):
            while await serial(node, authority) == before:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.02)
        assert await first.topics(), "the open connection is not closed"


async def serial(node: Node, authority: Authority) -> str:
    """Return the number of the certificate that a new connection gets."""
    context = client_context(TlsFiles(ca=authority.ca))
    _, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=context)
    shown = writer.get_extra_info("peercert")
    writer.close()
    with contextlib.suppress(ssl.SSLError, ConnectionError):
        await writer.wait_closed()
    return str(shown["serialNumber"])


async def test_tls_client_that_does_not_read_is_closed(stand: Stand, authority: Authority) -> None:
    node = await stand.start(**told(authority.files("node", "a")), write_stall_ms=500)
    async with client_of(node, Tls(str(authority.ca))) as client:
        await client.create_topic("t")
        async with client.producer("t") as producer:
            await producer.send(bytes(4 * MIB))
    topic_id = node.broker.topics.named("t").topic_id
    context = client_context(TlsFiles(ca=authority.ca))
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port, ssl=context, limit=1 << 12)
    peer = Peer(reader, writer)
    peer.post(hello=pb.Hello(version=PROTOCOL_VERSION, client_id="never reads"))
    for _ in range(10):
        entry = pb.FetchEntry(topic_id=topic_id, partition=0, offset=0)
        peer.post(fetch=pb.Fetch(entries=[entry], max_bytes=8 * MIB))
    await settled(lambda: value_of(node, "tidelog_stalled_clients_total") == 1, "nobody notices")
    await settled(lambda: not node.server.connections, "the connection stays")
    writer.transport.abort()


async def test_hanging_handshakes_do_not_block_clients(stand: Stand, authority: Authority) -> None:
    node = await stand.start(**told(authority.files("node", "a")), connections_max=5, hello_timeout_ms=60_000)
    hanging = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(600)]
    async with client_of(node, Tls(str(authority.ca))) as client:
        await client.create_topic("t")
        assert len(node.server.connections) == 1
    await stand.stop()
    for reader, writer in hanging:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b"", "a stop waits for none of them"
        writer.close()


async def test_status_contains_certificate_expiry(stand: Stand, authority: Authority) -> None:
    node = await stand.start(**told(authority.files("node", "a", days=1)))
    async with client_of(node, Tls(str(authority.ca))) as client:

        async def ends_s() -> tuple[float, float]:
            async with asyncio.timeout(20):
                while True:
                    (status,) = (await client.cluster_status()).nodes
                    if status.certificate_ends_us is not None and status.ca_ends_us is not None:
                        return status.certificate_ends_us / 1e6, status.ca_ends_us / 1e6
                    await asyncio.sleep(0.05)

        certificate_s, ca_s = await ends_s()
        assert certificate_s == pytest.approx(time.time() + 24 * 3600, abs=120)
        assert ca_s == pytest.approx(time.time() + 2 * 24 * 3600, abs=120)
