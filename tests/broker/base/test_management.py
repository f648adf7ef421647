from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.peer import Peer, batch

from tidelog_broker.base import management as management_module
from tidelog_broker.base.management import Health, Management, State
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.node.node import Node
from tidelog_proto.tls_files import TlsFiles, client_context, server_context


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_it_speaks_tls_and_a_caller_who_says_nothing_holds_up_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = Authority(tmp_path).files("node", "a")
    context = server_context(files)
    health = Health()
    health.state = "running"
    management = Management(health, NodeMetrics().registry, tls=lambda: context)
    port = management.start("127.0.0.1", 0)
    believing = client_context(TlsFiles(ca=files.ca))
    try:
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            plain.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert not plain.recv(100).startswith(b"HTTP")
            secure = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=believing)
            secure.request("GET", "/readyz")
            assert secure.getresponse().status == 200
            secure.close()
    finally:
        management.stop()
    assert capfd.readouterr().err == "", "nobody's slip fills the log"


async def test_a_running_node_is_live_ready_and_counted(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"a", b"b"))
    port = node.management_port
    assert await asyncio.to_thread(get, port, "/livez") == (200, '{"status": "live"}')
    assert await asyncio.to_thread(get, port, "/readyz") == (200, '{"status": "running"}')
    status, page = await asyncio.to_thread(get, port, "/metrics")
    assert status == 200
    assert 'tidelog_high_watermark_offset{partition="0",topic="t"} 2.0' in page
    assert 'tidelog_requests_total{kind="publish"} 1.0' in page
    assert (await asyncio.to_thread(get, port, "/else"))[0] == 404


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.mark.parametrize("state", ["starting", "stopping", "failed"])
def test_a_node_that_does_not_serve_is_not_ready(health: Health, state: State) -> None:
    management = Management(health, NodeMetrics().registry)
    port = management.start("127.0.0.1", 0)
    try:
        health.state = state
        assert get(port, "/readyz") == (503, json.dumps({"status": state}))
        assert get(port, "/livez")[0] == 200
    finally:
        management.stop()


def test_a_node_without_a_quorum_is_ready_and_says_what_it_lacks(health: Health) -> None:
    management = Management(health, NodeMetrics().registry)
    port = management.start("127.0.0.1", 0)
    try:
        health.state = "running"
        health.no_quorum = [f"t/{number}" for number in range(30)]
        status, said = get(port, "/readyz")
        assert status == 200
        named = [f"t/{number}" for number in range(20)]
        assert json.loads(said) == {"status": "running", "no_quorum": 30, "no_quorum_partitions": named}
    finally:
        management.stop()


async def test_a_stuck_loop_is_told_by_another_thread(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is stuck for as long as this test does not await."""
    monkeypatch.setattr(management_module, "HEARTBEAT_MS_MAX", 0)
    assert get(node.management_port, "/livez") == (503, '{"status": "stuck"}')
    assert get(node.management_port, "/readyz")[0] == 503
    monkeypatch.undo()
    node.life.health.beat()
    assert get(node.management_port, "/livez")[0] == 200


def test_the_port_is_free_again_after_stop(health: Health) -> None:
    management = Management(health, NodeMetrics().registry)
    port = management.start("127.0.0.1", 0)
    with pytest.raises(OSError, match=r"(?i)in use"):
        Management(health, NodeMetrics().registry).start("127.0.0.1", port)
    management.stop()
    again = Management(health, NodeMetrics().registry)
    assert again.start("127.0.0.1", port) == port
    again.stop()
    Management(health, NodeMetrics().registry).stop()
