"""The nodes of a cluster on this machine: processes that can be started, stopped, killed, paused and resumed.

The processes run the same commands as the nodes of `tidelog up`. The directory, log and port of a node stay the same
across restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up.child_processes import Child, running
from tidelog_cli.up.local_cluster import HOST, LocalNode, prepare

_LOG_TAIL_BYTES: Final = 2_000


class NodeProcess:
    """One node: its address, its directory, and its process while it runs."""

    def __init__(self, node: LocalNode) -> None:
        assert node.log is not None, "each node of a cluster has a log"
        self.node_id = node.node_id
        self.address = (HOST, node.port)
        self.log_path = node.log
        self._command = node.command
        self._child: Child | None = None
        self._running = contextlib.AsyncExitStack()
        self._paused = False

    @property
    def pid(self) -> int:
        """The process id; only while the node runs."""
        assert self._child is not None, f"{self.node_id} runs"
        return self._child.process.pid

    async def start(self) -> None:
        """Start the node and wait until it is ready.

        Raises:
            CommandFailed: the process exited, or timeout; the message includes the end of its log.
        """
        assert self._child is None, f"{self.node_id} is already running"
        log: IO[bytes] = self._running.enter_context(self.log_path.open("ab"))
        try:
            self._child = await self._running.enter_async_context(running(self.node_id, self._command, log=log))
        except CommandFailed as failure:
            raise CommandFailed(f"{failure}:\n{self.log_tail()}", failure.exit_code) from failure

    async def kill(self) -> None:
        """Kill the node (SIGKILL) and wait until it has exited; the page cache keeps data that was not synced."""
        assert self._child is not None, f"{self.node_id} runs"
        self._child.process.kill()
        await self._child.process.wait()
        await self._let_go()

    async def pause(self) -> None:
        """Pause the node (SIGSTOP) and wait until it is paused: its connections stay open without traffic."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True
        await asyncio.to_thread(os.waitid, os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Resume the node (SIGCONT)."""
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    async def stop(self) -> None:
        """Stop the node gracefully and wait; a node that does not run is ignored."""
        self.resume()
        await self._let_go()

    def log_tail(self) -> str:
        """Return the end of the log."""
        return self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")

    async def _let_go(self) -> None:
        self._child, self._paused = None, False
        await self._running.aclose()


class Nodes:
    """All nodes of one cluster, by id."""

    def __init__(self, processes: list[NodeProcess]) -> None:
        self.by_id = {process.node_id: process for process in processes}

    @property
    def bootstrap(self) -> list[str]:
        """Bootstrap addresses of all nodes, so that any of them may be down."""
        return [f"{host}:{port}" for host, port in (node.address for node in self.by_id.values())]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by node id; all nodes must run."""
        return {node_id: node.pid for node_id, node in self.by_id.items()}

    def others(self, node_id: str) -> list[NodeProcess]:
        """Return all nodes except one."""
        return [node for name, node in self.by_id.items() if name != node_id]


@contextlib.asynccontextmanager
async def cluster_of(count: int, directory: Path) -> AsyncIterator[Nodes]:
    """Create a cluster of `count` nodes in `directory`, yield when all are ready, and stop them on exit.

    Partitions may not have owners yet: see `cluster_view.settled`.

    Raises:
        CommandFailed: a node did not start.
    """
    prepared = prepare(directory, nodes=count, port=0, first_port=0, management_ports=[0])
    nodes = Nodes([NodeProcess(node) for node in prepared])
    try:
        await _start_all(nodes)
        yield nodes
    finally:
        for node in nodes.by_id.values():
            await node.stop()


async def _start_all(nodes: Nodes) -> None:
    """Start all nodes at once: a founder waits for most of the others, so none is ready before they run."""
    try:
        async with asyncio.TaskGroup() as group:
            for node in nodes.by_id.values():
                group.create_task(node.start())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
