"""Nodes and a gateway as processes of this machine, for `tidelog up` and the demonstration.

All nodes are started together, because the founders of a cluster wait for each other; the gateway knows all of them.
The gateway stops first, so that it accepts no requests that the nodes can no longer serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_cli.up.local_cluster import HOST, LocalNode
from tidelog_cli.up.local_security import LocalSecurity
from tidelog_proto.process.private_files import open_private_log

ALLOWED_ORIGINS_VARIABLE: Final = "TIDELOG_GATEWAY_ALLOWED_ORIGINS"


@dataclass(frozen=True, slots=True)
class LocalStack:
    """The running nodes, in the requested order, and the gateway."""

    nodes: tuple[Child, ...]
    gateway: Child
    security: LocalSecurity | None = None
    """Certificates and keys of the stack; None if it is not secure."""

    @property
    def _s(self) -> str:
        return "" if self.security is None else "s"

    @property
    def bootstrap(self) -> str:
        """Addresses of all nodes (HOST:PORT), separated by commas."""
        return _bootstrap(self.nodes)

    @property
    def http_url(self) -> str:
        """URL of the gateway, without a trailing slash."""
        return f"http{self._s}://{HOST}:{self.gateway.ready['http_port']}"

    @property
    def websocket_url(self) -> str:
        """URL for WebSocket connections."""
        return self.http_url.replace("http", "ws", 1) + "/v1/ws"

    @property
    def management_url(self) -> str:
        """URL of the first node's health and metrics, without a trailing slash."""
        return self.management_url_of(self.nodes[0])

    def management_url_of(self, node: Child) -> str:
        """Return the URL of a node's health and metrics."""
        return f"http{self._s}://{HOST}:{node.ready['management_port']}"


@contextlib.asynccontextmanager
async def running_stack(
    wanted: Sequence[LocalNode],
    *,
    http_port: int,
    gateway_log: Path | None = None,
    security: LocalSecurity | None = None,
    allowed_origins: Sequence[str] = (),
    node_variables: Mapping[str, str] | None = None,
) -> AsyncIterator[LocalStack]:
    """Run nodes and a gateway; enter the block when all are ready.

    Args:
        wanted: the nodes, from `local_cluster.prepare`.
        http_port: the gateway's port; 0 picks one.
        gateway_log: file that the gateway's log is appended to; this process's stderr by default.
        security: certificates and keys; None for an insecure stack.
        allowed_origins: origins of pages that may use the gateway; empty: those of the environment variable.
        node_variables: environment variables that the nodes get in addition.

    Raises:
        CommandFailed: a process did not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        inherited = os.environ if security is None else security.node_environ()
        nodes = await _start(stack, wanted, {**inherited, **(node_variables or {})})
        # No context, because TIDELOG_CONTEXT of this process may name another cluster.
        command = ["--context=", "gateway", "--bootstrap", _bootstrap(nodes), "--http-port", str(http_port)]
        environ: Mapping[str, str] = os.environ
        if security is not None:
            command, environ = [*command, *security.config()], security.gateway_environ()
        if allowed_origins:
            environ = {**environ, ALLOWED_ORIGINS_VARIABLE: ",".join(allowed_origins)}
        log = None if gateway_log is None else stack.enter_context(open_private_log(gateway_log, append=True))
        gateway = await stack.enter_async_context(running("gateway", command, log=log, environ=environ))
        yield LocalStack(nodes, gateway, security)


async def _start(
    stack: contextlib.AsyncExitStack, wanted: Sequence[LocalNode], environ: Mapping[str, str]
) -> tuple[Child, ...]:
    """Start all nodes; raise the first error."""

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
        # Raised below, because early releases of Python 3.11 raise an exception group from an `except*` clause.
        failed = failures.exceptions[0]
    if failed is not None:
        raise failed
    return tuple(task.result() for task in tasks)


def _bootstrap(nodes: Sequence[Child]) -> str:
    return ",".join(f"{HOST}:{node.ready['port']}" for node in nodes)
