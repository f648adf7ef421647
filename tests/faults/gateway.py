"""The gateway of a run: one process in a place of its own, as clients have theirs, that knows all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.faults.network import Network
from tests.faults.nodes import Node
from tests.faults.process import Process

from tidelog_cli.local_cluster import free_ports

HTTP_PORT: Final = 8080


class Gateway:
    """A gateway at a fixed address.

    Args:
        nodes: of the cluster.
        base: a directory for its log.
        network: where it lives; None for this machine's own loopback.
    """

    def __init__(self, nodes: Sequence[Node], base: Path, network: Network | None) -> None:
        self.name = "the gateway"
        place = None if network is None else network.gateway
        self._host = "127.0.0.1" if network is None or place is None else network.address(place)
        self._port = free_ports(1)[0] if network is None else HTTP_PORT
        self._nodes = nodes
        prefix = () if network is None or place is None else network.command(place)
        self.process = Process(self.name, prefix, base / "gateway.log")

    @property
    def websocket(self) -> str:
        """Where WebSockets are opened."""
        return f"ws://{self._host}:{self._port}/v1/ws"

    async def start(self) -> None:
        """Start it and wait until it says that it serves.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        bootstrap = ",".join(node.address for node in self._nodes)
        place = ("--host", self._host, "--http-port", str(self._port), "--insecure")
        await self.process.start("gateway", "--bootstrap", bootstrap, *place)
