from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tidelog.cluster import connection_pool as pool_module
from tidelog_cli.base import failures
from tidelog_cli.base.wrong_port import speaks_http
from tidelog_cli.main import main


class Quiet(BaseHTTPRequestHandler):
    """Answers every request with nothing."""

    def do_HEAD(self) -> None:
        """Answer."""
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


@pytest.fixture
def http_port() -> Iterator[int]:
    """Serve HTTP."""
    with HTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_command_at_an_http_port_says_so(
    http_port: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CONNECT_TIMEOUT_S_MAX", 0.5)  # this server waits for the end of a line
    address = f"127.0.0.1:{http_port}"
    assert main(["topic", "list", "--bootstrap", address]) == failures.EXIT_CANNOT_CONNECT
    told = capsys.readouterr().err
    assert f"{address} speaks HTTP" in told
    assert "7400" in told


async def test_other_protocol_is_not_http(node: str) -> None:
    async def chat(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        writer.close()

    server = await asyncio.start_server(chat, "127.0.0.1", 0)
    async with server:
        assert not await speaks_http("127.0.0.1", server.sockets[0].getsockname()[1])
    assert not await speaks_http("127.0.0.1", 1)
    assert not await speaks_http("127.0.0.1", int(node.rpartition(":")[2]))
