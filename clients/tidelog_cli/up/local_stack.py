"""Nodes and a gateway as processes of this machine: what `tidelog up` and the demonstration run.

All nodes are started at once, because the founders of a cluster wait for each other; the gateway knows all of them.
On the way out the gateway stops first, so that nobody is promised what the nodes can no longer do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_cli.up.local_cluster import HOST, LocalNode
from tidelog_cli.up.local_security import LocalSecurity
from tidelog_proto.process.private_files import open_private_log


@dataclass(frozen=True, slots=True)
class LocalStack:
    """What runs: the nodes, in the order they were asked for, and the gateway."""

    nodes: tuple[Child, ...]
    gateway: Child
    security: LocalSecurity | None = None
    """Its certificates and keys, if it has any."""

    @property
    def _s(self) -> str:
        return "" if self.security is None else "s"

    @property
    def bootstrap(self) -> str:
        """Every node's HOST:PORT, with commas between them."""
        return _bootstrap(self.nodes)

    @property
    def http_url(self) -> str:
        """The gateway, without a slash at its end."""
        return f"http{self._s}://{HOST}:{self.gateway.ready['http_port']}"

    @property
    def websocket_url(self) -> str:
        """Where a WebSocket connects."""
        return self.http_url.replace("http", "ws", 1) + "/v1/ws"

    @property
    def management_url(self) -> str:
        """The first node's health and metrics, without a slash at its end."""
        return self.management_url_of(self.nodes[0])

    def management_url_of(self, node: Child) -> str:
        """Return the same of another node."""
        return f"http{self._s}://{HOST}:{node.ready['management_port']}"


@contextlib.asynccontextmanager
async def running_stack(
    wanted: Sequence[LocalNode],
    *,
    http_port: int,
    gateway_log: Path | None = None,
    security: LocalSecurity | None = None,
) -> AsyncIterator[LocalStack]:
    """Run nodes and a gateway; enter when all are ready.

    Args:
        wanted: the nodes, as `local_cluster.prepare` describes them; each says where its log goes.
        http_port: the gateway's port; 0 picks one.
        security: its certificates and keys; None: it has none.
        gateway_log: the file that takes what the gateway says, begun anew; this process's stderr unless told.

    Raises:
        CommandFailed: one of them did not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        nodes = await _start(stack, wanted, None if security is None else security.node_environ())
        # No context that this process was told to use: its files and keys are for another cluster.
        command = ["--context=", "gateway", "--bootstrap", _bootstrap(nodes), "--http-port", str(http_port)]
        environ = None
        if security is not None:
            command, environ = [*command, *security.config()], security.gateway_environ()
        log = None if gateway_log is None else stack.enter_context(open_private_log(gateway_log, append=False))
        gateway = await stack.enter_async_context(running("gateway", command, log=log, environ=environ))
        yield LocalStack(nodes, gateway, security)


async def _start(
    stack: contextlib.AsyncExitStack, wanted: Sequence[LocalNode], environ: Mapping[str, str] | None
) -> tuple[Child, ...]:
    """Start all nodes; the first that cannot start ends it, and is the reason that is told."""

    async def start(node: LocalNode) -> Child:
        log = None if node.log is None else stack.enter_context(open_private_log(node.log, append=True))
        name = node.node_id if node.node_id == "node" else f"node {node.node_id}"
        return await stack.enter_async_context(running(name, node.command, log=log, environ=environ))

    failed: BaseException | None = None
    tasks: list[asyncio.Task[Child]] = []
    try:
        async with asyncio.TaskGroup() as starting:
            tasks += [starting.create_task(start(node)) for node in wanted]
    except* CommandFailed as failures:
        failed = failures.exceptions[0]  # raised below: what leaves such a clause is a group, in early releases of 3.11
    if failed is not None:
        raise failed
    return tuple(task.result() for task in tasks)


def _bootstrap(nodes: Sequence[Child]) -> str:
    return ",".join(f"{HOST}:{node.ready['port']}" for node in nodes)
