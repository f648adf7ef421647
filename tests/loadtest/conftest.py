from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidelog import Client
from tidelog_cli.up.child_processes import running


@pytest.fixture
async def bootstrap(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a new node."""
    command = ("node", "--data", str(tmp_path / "node"), "--port", "0", "--management-port", "0")
    async with running("node", command) as node:
        yield f"127.0.0.1:{node.ready['port']}"


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[Client]:
    """A client of that node."""
    async with Client(bootstrap) as connected:
        yield connected
