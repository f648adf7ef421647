"""A worker's server: accepts from its own listening socket, and from those that the parent assigns to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from functools import partial

from tidelog.cluster.contexts import Context
from tidelog_gateway.app import create_app, open_client
from tidelog_gateway.server.gateway_server import GatewayServer, make_server
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.worker_channel.peers import Duties, Peers
from tidelog_proto.process.server_tuning import tune_server


class WorkerServer:
    """The server of one worker.

    Args:
        listeners: the listening sockets of all workers.
        own: the index of this worker's own socket in `listeners`.
    """

    def __init__(self, server: GatewayServer, peers: Peers, listeners: Sequence[socket.socket], own: int) -> None:
        self._server = server
        self._peers = peers
        self._listeners = listeners
        self._own = own
        self._others: dict[int, asyncio.AbstractServer] = {}
        self._duties: asyncio.Queue[Duties] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        server.on_started = tune_server
        server.on_ready = self._begin
        server.on_stopping = self._end
        server.on_stopped = peers.send_final_metrics
        peers.on_duties = self._duties.put_nowait

    def run(self) -> None:
        """Serve until a signal."""
        self._server.run(sockets=[self._listeners[self._own]])

    def _begin(self) -> None:
        self._tasks = [
            asyncio.create_task(self._peers.run(), name="connection to the parent"),
            asyncio.create_task(self._follow(), name="follow duties"),
        ]

    async def _follow(self) -> None:
        while True:
            duties = await self._duties.get()
            for index in self._others.keys() - set(duties.accepts):
                self._others.pop(index).close()
            for index in set(duties.accepts) - self._others.keys() - {self._own}:
                self._others[index] = await self._server.accept_from(self._listeners[index].dup())

    def _end(self) -> None:
        """Stop accepting; the parent holds the sockets open, so that other workers accept from them."""
        self._peers.stopping()
        self._tasks[1].cancel()
        for server in self._others.values():
            server.close()
        for listener in self._listeners:
            listener.close()


def serve_as_worker(
    settings: GatewaySettings,
    context: Context | None,
    control: socket.socket,
    listeners: Sequence[socket.socket],
    own: int,
) -> None:
    """Serve until a signal.

    Raises:
        SettingsError: the gateway's certificate cannot be used.
    """
    peers = Peers(control, settings.workers)
    app = create_app(settings, opener=partial(open_client, context=context), peers=peers)
    WorkerServer(make_server(settings, app, listeners[own]), peers, listeners, own).run()
