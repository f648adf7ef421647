"""Nodes with authentication in tests: an administrator's key, and clients that send one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from tests.broker.founded import Founded

from tidelog import Client
from tidelog_broker.node.node import Node

ADMIN = "tlk_abcdefghij234567_" + "s" * 43


def client(port: int, api_key: str) -> Client:
    return Client(f"127.0.0.1:{port}", api_key=api_key, request_timeout_s=10)


@contextlib.asynccontextmanager
async def founded_with_keys(founded: Founded, key_file: Path) -> AsyncIterator[Client]:
    """Found a cluster with authentication; yield a client of its administrator at node a."""
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    await founded.settled()
    async with client(founded.ports["a"], ADMIN) as admin:
        yield admin


def counted(node: Node, name: str) -> float | None:
    """Return a node's counter."""
    return node.broker.metrics.registry.get_sample_value(name)
