"""A real node for the tests of programs that use Tidelog.

    import tidelog.testing

    with tidelog.testing.node() as node, node.client() as client:
        receipt = client.producer(node.topic()).send(b"value")

In an event loop: `async with tidelog.testing.node() as node, node.async_client() as client`.

It is started in a temporary directory on free ports of this machine, in about a second, and everything of it is gone
at the end: also when a test fails, is interrupted, or kills the process. With pytest there are fixtures,
see `tidelog_pytest`.
"""

from __future__ import annotations

from tidelog.testing.local_node import LocalNode, node
from tidelog.testing.process import NodeStartError

__all__ = ["LocalNode", "NodeStartError", "node"]
