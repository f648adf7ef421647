"""Fixtures that pytest loads through the entry point `pytest11`.

def test_a_visit_is_stored(tidelog_client, tidelog_topic):
    assert tidelog_client.producer(tidelog_topic).send(b"visit").offset == 0
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Importing the client is slow, so only tests with a fixture import it.
    from tidelog.sync import Client
    from tidelog.testing import LocalNode


@pytest.fixture(scope="session")
def tidelog_node() -> Iterator[LocalNode]:
    """Return a running node, shared by all tests of a run; with pytest-xdist, one per worker process.

    A test that stops or kills the node must start it again. `tidelog_node.async_client()` returns a client for an event
    loop.
    """
    from tidelog import testing  # noqa: PLC0415 - see above

    with testing.node() as node:
        yield node


@pytest.fixture
def tidelog_topic(request: pytest.FixtureRequest, tidelog_node: LocalNode) -> Iterator[str]:
    """Return the name of a new topic with one partition, which is deleted after the test."""
    from tidelog import TidelogError  # noqa: PLC0415
    from tidelog.testing import NodeStartError  # noqa: PLC0415

    name = tidelog_node.topic(prefix=request.node.name)
    yield name
    with contextlib.suppress(TidelogError, NodeStartError):  # The test may have deleted the topic, or killed the node.
        tidelog_node.delete_topic(name)


@pytest.fixture
def tidelog_client(tidelog_node: LocalNode) -> Iterator[Client]:
    """Return a new blocking client of the node; after the test it is closed without publishing pending records."""
    client = tidelog_node.client()
    yield client
    client.abort()
