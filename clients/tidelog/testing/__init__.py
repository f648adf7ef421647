"""A node for tests of programs that use Tidelog.

    import tidelog.testing

    with tidelog.testing.node() as node, node.client() as client:
        receipt = client.producer(node.topic()).send(b"value")

In an event loop: `async with tidelog.testing.node() as node, node.async_client() as client`.

The node starts in about a second, in a temporary directory and on free ports. Its process and its directory are removed
at the end, also if a test fails, is interrupted, or the process is killed. For pytest fixtures see `tidelog_pytest`.
"""

from __future__ import annotations

from tidelog.testing.local_node import LocalNode, node
from tidelog.testing.process import NodeStartError

__all__ = ["LocalNode", "NodeStartError", "node"]
