"""The gateway of a run: one process on a machine of its own, like clients, that knows all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.faults.identities import WEB_CLIENTS
from tests.faults.network import Network
from tests.faults.nodes import Node
from tests.faults.process import Process
from tests.faults.protection import Protection
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tidelog_cli.up.local_cluster import free_ports

HTTP_PORT: Final = 8080
PROTOCOL: Final = Subprotocol("tidelog.v1.json")
OPEN_S: Final = 10
CLOSE_S: Final = 2


class Gateway:
    """A gateway at a fixed address.

    Args:
        nodes: of the cluster.
        base: a directory for its log.
        network: where it lives; None for this machine's own loopback.
        protection: its certificate and keys; None: no encryption and no authentication.
    """

    def __init__(
        self, nodes: Sequence[Node], base: Path, network: Network | None, protection: Protection | None = None
    ) -> None:
        self.name = "the gateway"
        place = None if network is None else network.gateway
        self._host = "127.0.0.1" if network is None or place is None else network.address(place)
        self._port = free_ports(1)[0] if network is None else HTTP_PORT
        self._nodes = nodes
        self._protection = protection
        self._environment: Mapping[str, str] = {}
        if protection is not None:
            self._environment = protection.gateway_environment(self._host)
        prefix = () if network is None or place is None else network.command(place)
        self.process = Process(self.name, prefix, base / "gateway.log")

    @property
    def url(self) -> str:
        """Where it is asked over HTTP."""
        return f"{'http' if self._protection is None else 'https'}://{self._host}:{self._port}"

    def websocket(self) -> connect:
        """Return what opens a WebSocket, as one of its callers where they show who they are."""
        at, protection = f"{self._host}:{self._port}/v1/ws", self._protection
        if protection is None:
            return connect(f"ws://{at}", subprotocols=[PROTOCOL], open_timeout=OPEN_S, close_timeout=CLOSE_S)
        key = protection.identities.file_of(WEB_CLIENTS).read_text()
        return connect(
            f"wss://{at}",
            ssl=protection.trust(),
            additional_headers={"Authorization": f"Bearer {key}"},
            subprotocols=[PROTOCOL],
            open_timeout=OPEN_S,
            close_timeout=CLOSE_S,
        )

    async def start(self) -> None:
        """Start it and wait until it logs that it serves.

        Raises:
            RuntimeError: it ended, or took too long.
        """
        bootstrap = ",".join(node.address for node in self._nodes)
        open_to_all = () if self._protection or self._host == "127.0.0.1" else ("--insecure",)
        place = ("--host", self._host, "--http-port", str(self._port), *open_to_all)
        await self.process.start("gateway", "--bootstrap", bootstrap, *place, environment=self._environment)
