from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.fake_log import FakeLog, opener

from tidelog_gateway.app import create_app
from tidelog_gateway.server.gateway_server import make_server
from tidelog_gateway.server.listeners import listen
from tidelog_gateway.settings import GatewaySettings

OpenApi = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def open_api(log: FakeLog) -> OpenApi:
    """Return a function that opens an application on the log in memory with some settings, and a client for it."""

    @asynccontextmanager
    async def open_with(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        settings.setdefault("allowed_hosts", ["gateway"])
        app = create_app(GatewaySettings(**settings), opener=opener(log))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://gateway") as client,
        ):
            yield client

    return open_with


@pytest.fixture
async def api(open_api: OpenApi) -> AsyncIterator[httpx.AsyncClient]:
    async with open_api() as client:
        yield client


@dataclass(slots=True)
class Served:
    """A server in this process, on the log in memory. `stop` requests a graceful stop and waits for it."""

    port: int
    stop: Callable[[], Any]

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ws(self) -> str:
        return f"ws://127.0.0.1:{self.port}/v1/ws"


Serve = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def serve(log: FakeLog) -> Serve:
    """Return a function that serves the application on a free port with some settings."""

    @asynccontextmanager
    async def serve_with(**changes: Any) -> AsyncIterator[Served]:
        changes.setdefault("allowed_hosts", ["x"])
        settings = GatewaySettings(http_port=0, **changes)
        listener = listen(settings)
        server = make_server(settings, create_app(settings, opener=opener(log)), listener)
        task = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await task

        try:
            yield Served(listener.getsockname()[1], stop)
        finally:
            await stop()

    return serve_with


@pytest.fixture
def server_log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect log messages from the level of warnings on, with any handlers that the server installs."""
    lines: list[str] = []

    def collect(_: logging.Logger, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            lines.append(record.getMessage())

    monkeypatch.setattr(logging.Logger, "callHandlers", collect)
    return lines


@contextmanager
def process(*arguments: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Start a `tidelog` command with additional variables, yield it with its ready line, and stop it at the end."""
    command = [sys.executable, "-m", "tidelog_cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | variables) as started:
        assert started.stdout is not None
        try:
            line = started.stdout.readline()
            assert line, f"{arguments} ended with {started.wait(START_TIMEOUT_S)}"
            ready = json.loads(line)
            assert ready["event"] == "ready"
            yield started, ready
        finally:
            if started.poll() is None:
                started.send_signal(signal.SIGTERM)
            try:
                started.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                started.kill()


@pytest.fixture(scope="session")
def node_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a real node, which tests share; each test uses its own topics."""
    data: Path = tmp_path_factory.mktemp("node")
    with process("node", "--data", str(data), "--port", "0", "--management-port", "0") as (_, ready):
        yield f"127.0.0.1:{ready['port']}"


@pytest.fixture(scope="session")
def gateway_address(node_address: str) -> Iterator[str]:
    """Start a real gateway process for the real node: HOST:PORT."""
    with process("gateway", "--bootstrap", node_address, "--http-port", "0") as (_, ready):
        yield f"127.0.0.1:{ready['http_port']}"


@pytest.fixture
async def http(gateway_address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Open a client of that gateway."""
    async with httpx.AsyncClient(base_url=f"http://{gateway_address}", timeout=30) as client:
        yield client
