"""Fixtures of the client's tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog import Client
from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.routing import Router


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with running_fake_node() as node:
        yield node


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[Client]:
    client = Client(f"127.0.0.1:{node.port}", request_timeout_s=5.0)
    yield client
    await client.abort()


@pytest.fixture
async def router(node: FakeNode) -> AsyncIterator[Router]:
    pool = ConnectionPool(Identity("test", "test", 5.0))
    router = Router([("127.0.0.1", node.port)], pool, request_timeout_s=0.5)
    yield router
    await router.close()


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a real node in a separate process, shared by all tests; the value is its address."""
    command = [sys.executable, "-m", "tidelog_cli", "node", "--data", str(tmp_path_factory.mktemp("node"))]
    command += ["--port", "0", "--management-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture
async def real(shared_node: str) -> AsyncIterator[Client]:
    """A client of the real node."""
    async with Client(shared_node) as client:
        yield client
