"""Nodes in the test's own process and event loop, on a disk with a lever, and peers that talk to them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.broker.faulty_disk import FaultyDisk
from tests.broker.peer import Peer

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.metadata.features import FEATURES
from tidelog_broker.node.node import Node
from tidelog_broker.storage.node.node_dir import NodeDir, open_node_dir

DEFAULTS: dict[str, Any] = {
    "port": 0,
    "management_port": 0,
    "io_workers": 2,
    "stop_timeout_ms": 5_000,
}


def abort_connections(node: Node) -> None:
    """Cut off everybody."""
    for connection in list(node.server.connections):
        connection.cut_off()


class Stand:
    """One data directory and the node that runs on it, one at a time; peers end with the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: dict[str, Any] = {}
        self.features = FEATURES
        """The features that the node supports; with fewer it simulates an older build."""
        self.disk = FaultyDisk()
        self.peers: list[Peer] = []
        self._node: Node | None = None
        self._dir: NodeDir | None = None

    @property
    def node(self) -> Node:
        assert self._node is not None, "no node runs"
        return self._node

    async def start(self, **settings: Any) -> Node:
        """Start a node; settings stay for the starts that follow and may be smaller than users are allowed."""
        assert self._node is None, "a node runs already"
        self.settings |= settings
        self.disk = FaultyDisk()
        checked = NodeSettings(data=self.path, **DEFAULTS).model_copy(update=self.settings)
        self._dir = open_node_dir(self.path)
        node = self._node = Node(checked, self._dir, fs=self.disk, features=self.features)
        try:
            await node.start()
        except BaseException:
            await self.stop()
            raise
        # A held write must hold a worker and not the event loop that the test itself runs on.
        node.broker.inline_writes.took(0, math.inf, math.inf, sleeps_before=-1)
        return node

    async def stop(self) -> int:
        """Stop gracefully; return the exit code."""
        node, self._node = self.node, None
        node.lifecycle.ask_to_stop()
        code = await node.run_until_stopped()
        self._release()
        return code

    async def stopped(self) -> int:
        """Wait for a node that stops by itself; return the exit code."""
        node, self._node = self.node, None
        async with asyncio.timeout(20):
            code = await node.run_until_stopped()
        self._release()
        return code

    async def crash(self) -> None:
        """End the node like kill -9: written data stays, pending work is lost, requests get no answer."""
        self.disk.kill()
        node, self._node = self.node, None
        abort_connections(node)  # at once, so that no client learns of the closed disk
        await node.server.stop_listening()
        abort_connections(node)
        await node.broker.tasks.cancel()
        for partition in node.broker.partitions.all():
            partition._cancel_sync()
            for log in partition.log.epochs:
                with contextlib.suppress(Exception):  # a kill closes every file, whatever state its log was in
                    log.close(sync=False)
        node.close()
        await asyncio.sleep(0)  # answers of the workers that were on their way
        self._release()

    def _release(self) -> None:
        assert self._dir is not None
        self._dir.close()
        self._dir = None

    async def restart(self, **settings: Any) -> Node:
        await self.stop()
        return await self.start(**settings)

    async def peer(self, *, greet: bool = True, reading: bool = True) -> Peer:
        peer = await Peer.connect(self.node.port, reading=reading)
        self.peers.append(peer)
        if greet and reading:
            await peer.greet()
        return peer

    async def close(self) -> None:
        """End everything; no request may have kept its share of the budget, no partition its listeners."""
        self.disk.heal()
        for peer in self.peers:
            await peer.close()
        if self._node is None:
            return
        node = self._node
        await self.stop()
        await settled(lambda: not node.server.connections, "a connection was never closed")
        budget = node.server.budget  # a worker may still be at a request whose partition is gone
        await settled(lambda: not budget.used_bytes, "a request kept its share of the budget")
        for partition in node.broker.partitions.all():
            assert not partition.changes.listeners, f"{partition.name} has listeners left"
            assert partition.pipeline.queued_bytes == 0


async def settled(condition: Callable[[], bool], message: str) -> None:
    """Let the event loop turn until `condition()` holds."""
    try:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event that a test could see
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(message) from None
