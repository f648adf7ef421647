"""What the client's tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog import Client


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with running_fake_node() as node:
        yield node


@pytest.fixture
async def client(node: FakeNode) -> AsyncIterator[Client]:
    client = Client(f"127.0.0.1:{node.port}", request_timeout_s=5.0)
    yield client
    await client.abort()
