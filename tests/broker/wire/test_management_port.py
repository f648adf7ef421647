"""The management port: limits, TLS mismatches, and the port of a running node."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.authority import Authority
from tests.broker.metric import value_of
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand

from tidelog_broker.base import management_answers as management_module
from tidelog_broker.base.management_answers import Answers, Health
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.metrics_guard import MetricsGuard
from tidelog_broker.node.node import Node
from tidelog_broker.wire.management_port import MANAGEMENT_BOUNDS, Management, ManagementBounds
from tidelog_proto.tls.reloaded_files import TlsFiles, client_context, server_context

OPEN = MetricsGuard(None, is_open=True)
LIVEZ = b"GET /livez HTTP/1.1\r\n\r\n"


class Opened:
    """A port on its own, closed at the end of the test."""

    def __init__(
        self, tls: Callable[[], ssl.SSLContext] | None = None, bounds: ManagementBounds = MANAGEMENT_BOUNDS
    ) -> None:
        self.health = Health()
        self.health.state = "running"
        self.metrics = NodeMetrics()
        answers = Answers(self.health, self.metrics.registry, OPEN)
        self._management = Management(answers, self.metrics, tls=tls, bounds=bounds)
        self.port = self._management.start("127.0.0.1", 0)

    def stop(self) -> None:
        self._management.stop()

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        """Return a connection from an address of this machine."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=10, source_address=(host, 0))

    def count(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(name) or 0.0


@contextlib.contextmanager
def opened(
    tls: Callable[[], ssl.SSLContext] | None = None, bounds: ManagementBounds = MANAGEMENT_BOUNDS
) -> Iterator[Opened]:
    port = Opened(tls, bounds)
    try:
        yield port
    finally:
        port.stop()


def get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def all_of(connection: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def eventually(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def descriptors() -> int:
    """Return how many this process has, which is on both sides of each connection."""
    return len(list(Path("/proc/self/fd").iterdir()))


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


# --- what is bounded ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_connection_flood_does_not_displace_other_addresses(tmp_path: Path, *, is_encrypted: bool) -> None:
    """Four hundred connections that say little: some stay, no thread is made for them, and health is answered."""
    context = server_context(Authority(tmp_path).files("node", "a"))
    bounds = ManagementBounds(head_s=60)
    with opened((lambda: context) if is_encrypted else None, bounds) as port, contextlib.ExitStack() as kept:
        single = kept.enter_context(port.connect("127.0.0.2"))
        single.sendall(b"\x16\x03" if is_encrypted else LIVEZ[:5])
        threads = threading.active_count()
        flood = [kept.enter_context(port.connect()) for _ in range(400)]
        for each in flood:
            with contextlib.suppress(ConnectionError):
                each.sendall(b"\x16" if is_encrypted else b"G")
        most = bounds.connections_max
        eventually(lambda: port.count("tidelog_strangers_closed_total") == 401 - most, "they stay")
        eventually(lambda: sum(map(is_open, flood)) == most - 1, "others than the oldest have gone")
        assert not any(map(is_open, flood[: 401 - most]))
        assert is_open(single), "another address loses nothing"
        assert threading.active_count() == threads
        begun_s = time.monotonic()
        if is_encrypted:
            believing = client_context(TlsFiles(ca=tmp_path / "ca.pem"))
            with believing.wrap_socket(port.connect(), server_hostname="127.0.0.1") as asking:
                asking.sendall(LIVEZ)
                assert b"200 OK" in all_of(asking)
        else:
            assert get(port.port, "/livez")[0] == 200
        assert time.monotonic() - begun_s < 2


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_slow_request_head_is_closed_at_the_deadline(tmp_path: Path, *, is_encrypted: bool) -> None:
    context = server_context(Authority(tmp_path).files("node", "a"))
    with (
        opened((lambda: context) if is_encrypted else None, ManagementBounds(head_s=1.5)) as port,
        port.connect() as plain,
    ):
        connection = plain
        if is_encrypted:
            believing = client_context(TlsFiles(ca=tmp_path / "ca.pem"))
            connection = believing.wrap_socket(plain, server_hostname="127.0.0.1")
        begun_s, said = time.monotonic(), b""
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /livez HTTP/1.1\r\n")
            while time.monotonic() - begun_s < 10:
                connection.sendall(b"x")
                connection.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    said = connection.recv(1000)
                    break
        assert said.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - begun_s < 8
        with contextlib.suppress(OSError):
            connection.close()


def test_missing_tls_handshake_is_closed_at_the_deadline(tmp_path: Path) -> None:
    context = server_context(Authority(tmp_path).files("node", "a"))
    with opened(lambda: context, ManagementBounds(head_s=0.2)) as port, port.connect() as silent:
        assert all_of(silent) == b""
        eventually(lambda: port.count("tidelog_tls_failed_total") == 1, "it is not counted")


def test_request_head_size_is_limited(tmp_path: Path) -> None:
    with opened(bounds=ManagementBounds(head_bytes_max=200)) as port:
        for head, status in (
            (LIVEZ, b"200"),
            (LIVEZ[:-2] + b"x: " + b"x" * 250, b"431"),
            (LIVEZ[:-2] + b"x: " + b"x" * 250 + b"\r\n\r\n", b"431"),
            (b"\r" * 300, b"431"),
        ):
            with port.connect() as connection:
                connection.sendall(head)
                assert all_of(connection).startswith(b"HTTP/1.1 " + status), head
        with port.connect() as connection:
            for byte in LIVEZ:
                connection.sendall(bytes([byte]))
            connection.shutdown(socket.SHUT_WR)
            assert all_of(connection).startswith(b"HTTP/1.1 200 "), "a head in parts, followed by the end of the stream"
        with port.connect() as connection:
            connection.sendall(LIVEZ[:-1])
            connection.shutdown(socket.SHUT_WR)
            assert all_of(connection) == b""


def test_client_that_does_not_read_is_closed_and_does_not_delay_health_checks() -> None:
    with opened(bounds=ManagementBounds(answer_s=2)) as port, contextlib.ExitStack() as kept:
        for number in range(2_000):  # some pages' worth, more than sockets' buffers take
            port.metrics.throttled_seconds.labels(f"{number}-" + "x" * 5_000).inc()
        before = descriptors()
        lazy = [kept.enter_context(port.connect()) for _ in range(3)]
        for each in lazy:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            each.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert get(port.port, "/livez")[0] == 200
        eventually(lambda: descriptors() <= before + 3, "this side keeps them")
        for each in lazy:
            assert each.recv(13) == b"HTTP/1.1 200 ", "they were answered, and did not take it"
        assert len(get(port.port, "/metrics")[1]) > 10_000_000, "a reading client gets the complete answer"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /livez HTTP/1.1\nHost: a\n\n",
        b"GET /livez HTTP/1.1\r\nHost: a\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\nab",
    ],
)
def test_ambiguous_request_head_is_refused(head: bytes) -> None:
    with opened(bounds=ManagementBounds(head_s=600)) as port:
        for size in (len(head), 1):
            data = head if size > 1 else head.removesuffix(b"ab")  # it is refused before the body, and closed
            with port.connect() as connection:
                for at in range(0, len(data), size):
                    connection.sendall(data[at : at + size])
                assert all_of(connection).startswith(b"HTTP/1.1 400 "), size


# --- TLS on one side alone ------------------------------------------------------------------------------


def test_plain_http_on_a_tls_port_is_answered_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    context = server_context(Authority(tmp_path).files("node", "a"))
    with caplog.at_level(logging.INFO), opened(lambda: context) as port:
        for _ in range(3):
            status, said = get(port.port, "/livez")
            assert status == 400
            assert "this port requires TLS; use an https:// address" in json.loads(said)["status"]
        eventually(lambda: port.count("tidelog_tls_failed_total") == 3, "they are not counted")
        secure = http.client.HTTPSConnection(
            "127.0.0.1", port.port, timeout=10, context=client_context(TlsFiles(ca=tmp_path / "ca.pem"))
        )
        secure.request("GET", "/readyz")
        assert secure.getresponse().status == 200
        secure.close()
    said_lines = [line for line in caplog.messages if "does not speak TLS" in line]
    assert len(said_lines) == 1, "strangers do not fill the log"
    assert "management port" in said_lines[0]
    assert capfd.readouterr().err == ""


def test_tls_on_a_plain_port_is_answered_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    believing = client_context(TlsFiles(ca=Authority(tmp_path).ca))
    with caplog.at_level(logging.INFO), opened() as port:
        for _ in range(3):
            with port.connect() as connection, pytest.raises(ssl.SSLError, match=r"(?i)wrong.version"):
                believing.wrap_socket(connection, server_hostname="127.0.0.1")
        with port.connect() as connection:
            connection.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert b"this port does not use TLS; use an http://" in all_of(connection)
    said = [line for line in caplog.messages if "used TLS on the management port, which does not use TLS" in line]
    assert len(said) == 1


# --- lifecycle, and a real node -------------------------------------------------------------------------


def test_stop_closes_connections_and_frees_the_port() -> None:
    before = {thread for thread in threading.enumerate() if thread.name.startswith("management")}
    with opened() as first, first.connect() as hanging:
        hanging.sendall(b"GET")
        answers, metrics = Answers(first.health, first.metrics.registry, OPEN), NodeMetrics()
        with pytest.raises(OSError, match=r"(?i)in use"):
            Management(answers, metrics).start("127.0.0.1", first.port)
        assert get(first.port, "/livez")[0] == 200
        first.stop()
        assert all_of(hanging) == b""
        again = Management(answers, metrics)
        assert again.start("127.0.0.1", first.port) == first.port
        again.stop()
        again.stop()
    Management(answers, metrics).stop()
    assert not {thread for thread in threading.enumerate() if thread.name.startswith("management")} - before


def test_failed_metrics_page_does_not_affect_the_next_one(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as port:
        broken = port.metrics.connections
        broken.set_function(lambda: 1 / 0)
        assert get(port.port, "/metrics")[0] == 500
        assert "rendering the metrics page failed" in caplog.text
        broken.set_function(lambda: 1)
        assert get(port.port, "/metrics")[0] == 200


def test_port_listens_on_ipv6() -> None:
    management = Management(Answers(Health(), NodeMetrics().registry, OPEN), NodeMetrics())
    try:
        port = management.start("::1", 0)
    except OSError:
        pytest.skip("this machine has no IPv6")
    try:
        with socket.create_connection(("::1", port), timeout=10) as connection:
            connection.sendall(LIVEZ)
            assert all_of(connection).startswith(b"HTTP/1.1 200 ")
    finally:
        management.stop()


async def test_running_node_is_live_ready_and_exports_metrics(node: Node, peer: Peer) -> None:
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


async def test_blocked_event_loop_is_reported_as_not_live(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop is stuck for as long as this test does not await."""
    monkeypatch.setattr(management_module, "HEARTBEAT_MS_MAX", 0)
    assert get(node.management_port, "/livez") == (503, '{"status": "stuck"}')
    assert get(node.management_port, "/readyz")[0] == 503
    monkeypatch.undo()
    node.lifecycle.health.beat()
    assert get(node.management_port, "/livez")[0] == 200


async def test_plain_node_serves_metrics_only_under_its_host_names(stand: Stand) -> None:
    node = await stand.start(advertise_host="log1.example")
    for host, expected in (("log1.example:7401", 200), ("127.0.0.1", 200), ("evil.example", 421)):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.management_port)
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert int(answer.split(b" ")[1]) == expected, host


async def test_reachable_node_serves_metrics_with_a_token(stand: Stand, tmp_path: Path) -> None:
    files = Authority(tmp_path / "ca").files("node", "a")
    token = tmp_path / "metrics.token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-sixteen\n")
    encrypted = {"tls_cert_file": files.cert, "tls_key_file": files.key}
    believing = client_context(TlsFiles(ca=files.ca))

    async def status(path: str, *headers: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", node.management_port, ssl=believing)
        writer.write("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())
        answer = await reader.read()
        writer.close()
        return int(answer.split(b" ")[1])

    node = await stand.start(management_host="0.0.0.0", **encrypted)
    assert [await status(path) for path in ("/livez", "/readyz", "/metrics")] == [200, 200, 403]
    await stand.stop()
    node = await stand.start(management_token_file=token)
    assert [await status(path) for path in ("/livez", "/readyz", "/metrics")] == [200, 200, 401]
    assert await status("/metrics", "Authorization: Bearer a-token-of-sixteen") == 200
    assert value_of(node, "tidelog_tls_failed_total") == 0
