"""Fixtures of the node's tests; see `stand`, `peer` and `faulty_disk`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN
from tests.broker.peer import Peer
from tests.broker.stand import Stand

from tidelog_broker.node.node import Node


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A data directory without a node: the test starts it."""
    stand = Stand(tmp_path / "data")
    yield stand
    await stand.close()


@pytest.fixture
async def node(stand: Stand) -> Node:
    """A running node with the default settings."""
    return await stand.start()


@pytest.fixture
async def peer(stand: Stand, node: Node) -> Peer:
    """A connection to the running node after HELLO."""
    return await stand.peer()


@pytest.fixture
async def founded(tmp_path: Path) -> AsyncIterator[Founded]:
    """A bootstrap file for three nodes; the test starts them."""
    cluster = Founded(tmp_path)
    yield cluster
    await cluster.close()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A file with an administrator's key."""
    path = tmp_path / "admin.key"
    path.touch(mode=0o600)
    path.write_text(f"# of tests\n{ADMIN}\n")
    return path
