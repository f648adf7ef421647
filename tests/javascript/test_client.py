"""The tests of the JavaScript client, run by node's test runner against a real node and real gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.gateway.conftest import process
from tests.gateway.secured import WRONG, secured

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "javascript"
FILES = sorted(path.name for path in (CLIENT / "tests").glob("*.test.js"))
TIMEOUT_S = 180

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TIMEOUT_S + 30)]


class Restarts:
    """A gateway that a test, over HTTP, has stopped and started again on its port."""

    def __init__(self, node_address: str) -> None:
        self._node_address = node_address
        self._stack = ExitStack()
        self.port = 0
        self._start()

    def _start(self) -> None:
        arguments = ("gateway", "--bootstrap", self._node_address, "--http-port", str(self.port))
        self._process, ready = self._stack.enter_context(process(*arguments))
        self.port = int(ready["http_port"])

    def restart(self, *, kill: bool, down_ms: int) -> None:
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self._process.wait(30)
        self._stack.close()
        time.sleep(down_ms / 1000)
        self._start()

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def control_of(gateway: Restarts) -> Iterator[str]:
    """Serve `POST /restart` and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            try:
                gateway.restart(kill=query["kill"] == ["1"], down_ms=int(query["down_ms"][0]))
            except Exception as error:  # noqa: BLE001 # the test shows it
                status, text = 500, repr(error)
            else:
                status, text = 200, "started"
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the name of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextlib.contextmanager
def tight_gateway(node_address: str) -> Iterator[dict[str, str]]:
    """Run a gateway that has room for few bytes, and yield the variable that names it."""
    few = {"TIDELOG_GATEWAY_IN_FLIGHT_BYTES_MAX": "2048"}
    with process("gateway", "--bootstrap", node_address, "--http-port", "0", **few) as (_, ready):
        yield {"TIDELOG_TIGHT_URL": f"http://127.0.0.1:{ready['http_port']}"}


@pytest.fixture
def gateways(node_address: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Variables for a file that name a gateway that may be restarted, and, if the file uses it, a tight one."""
    is_tight = "tightUrl" in (CLIENT / "tests" / request.getfixturevalue("name")).read_text()
    gateway = Restarts(node_address)
    try:
        with control_of(gateway) as control, ExitStack() as stack:
            tight = stack.enter_context(tight_gateway(node_address)) if is_tight else {}
            yield {"TIDELOG_URL": f"http://127.0.0.1:{gateway.port}", "TIDELOG_CONTROL": control} | tight
    finally:
        gateway.close()


@pytest.fixture
async def secured_gateway(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """Variables for tests that name a gateway with callers."""
    async with secured(tmp_path, wrong_credentials_max=20) as gate:
        for topic in ("allowed", "denied"):
            await gate.admin.create_topic(topic)
        key = await gate.key_of("ann", (("all",), "topic", "allowed"))
        yield {
            "TIDELOG_SECURED_URL": f"http://127.0.0.1:{gate.port}",
            "TIDELOG_API_KEY": key,
            "TIDELOG_WRONG_KEY": WRONG,
            "TIDELOG_URL": "http://127.0.0.1:1",
        }


async def run_node(command: list[str], name: str, variables: dict[str, str], log: Path) -> None:
    """Run one file of tests; its output is shown where it fails."""
    program = [*command, "--test", "--test-reporter=spec", str(CLIENT / "tests" / name)]
    with log.open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            *program, stdout=output, stderr=asyncio.subprocess.STDOUT, env=os.environ | variables, cwd=CLIENT
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await started.wait()
        except TimeoutError:
            started.kill()
            await started.wait()
    text = await asyncio.to_thread(log.read_text, errors="replace")
    passed = re.search(r"^\S+ pass (\d+)$", text, re.MULTILINE)
    assert started.returncode == 0, text
    assert passed is not None, text
    assert int(passed[1]) > 0, text


@pytest.mark.parametrize("name", [name for name in FILES if name != "secured.test.js"])
async def test_client(name: str, node_command: list[str], gateways: dict[str, str], tmp_path: Path) -> None:
    await run_node(node_command, name, gateways, tmp_path / "log")


async def test_client_of_a_gateway_with_callers(
    node_command: list[str], secured_gateway: dict[str, str], tmp_path: Path
) -> None:
    await run_node(node_command, "secured.test.js", secured_gateway, tmp_path / "log")
