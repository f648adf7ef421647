"""The uvicorn server of the application: its socket, the ready line, and a graceful stop.

On SIGTERM or SIGINT the server stops accepting, finishes requests in flight (those that wait for records stop waiting),
closes WebSockets with 1012, so that clients reconnect to another gateway and resume, and exits with 0. uvicorn itself
would end by raising the signal again, which supervisors take for a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, cast

import uvicorn
from fastapi import FastAPI

from tidelog.cluster.contexts import Context
from tidelog_gateway.app import create_app, open_client
from tidelog_gateway.budget.connection_slots import ConnectionSlots
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.shedding_bounds import SHED_INTERVAL_S
from tidelog_gateway.server.direct_entry import direct_entry
from tidelog_gateway.server.http_protocol import http_protocol_class
from tidelog_gateway.server.listeners import BACKLOG, listen
from tidelog_gateway.server.tls import GatewayTls
from tidelog_gateway.server.websocket_protocol import bounded_websocket
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.server_tuning import tune_server
from tidelog_proto.process.stop_signals import stop_on_signals

BODIES_SHARE: Final = 0.5
"""Share of the graceful shutdown timeout during which bodies may still arrive; the rest is for handling them."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that prints a ready line and wakes waiting requests when it stops."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, http_port: int, tls: GatewayTls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._following: asyncio.Task[None] | None = None
        self._app = app
        self.on_started: Callable[[], None] = lambda: None
        """Called at the end of the start, before `on_ready`."""
        self.on_ready: Callable[[], None] = partial(print_ready, http_port)
        """Called when the server accepts connections."""
        self.on_stopping: Callable[[], None] = lambda: None
        """Called at the beginning of a stop."""
        self.on_stopped: Callable[[], Awaitable[None]] = _no_more
        """Called after the last request of a stop, while the event loop still runs."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then print the ready line."""
        await super().startup(sockets=sockets)
        if self._tls is not None:
            self._following = asyncio.create_task(
                self._tls.follow(self._app.state.gateway.metrics.tls_ends_at), name="reload the certificate"
            )
        self.on_started()
        self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End long polls for records, then shut down as uvicorn does.

        Connections whose body or response has stalled are closed at once. After `BODIES_SHARE` of the graceful
        shutdown timeout, request bodies that are still arriving are refused, and their clients are asked to send them
        again.
        """
        self._app.state.gateway.stop()
        self.on_stopping()
        if self._tls is not None and self._following is not None:
            self._following.cancel()
            self._tls.entrance.close()
        shedding = asyncio.create_task(self._shed_load())
        try:
            await super().shutdown(sockets=sockets)
        finally:
            shedding.cancel()
            await self.on_stopped()

    async def _shed_load(self) -> None:
        outgoing: ResponseBudget = self._app.state.outgoing
        incoming: RequestBudget = self._app.state.incoming
        stop_s = float(self.config.timeout_graceful_shutdown or 0)
        bodies_until = time.monotonic() + BODIES_SHARE * stop_s
        while True:
            outgoing.shed_load(outgoing.used_bytes + 1)
            incoming.close_slow(everyone=time.monotonic() >= bodies_until)
            await asyncio.sleep(SHED_INTERVAL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Turn SIGTERM and SIGINT into a graceful stop; a second SIGINT stops at once."""
        with stop_on_signals((signal.SIGTERM, signal.SIGINT), lambda number: self.handle_exit(number, None)):
            yield

    async def accept_from(self, listener: socket.socket) -> asyncio.AbstractServer:
        """Accept connections from another socket; close the returned server to stop it."""
        make = partial(
            cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class),
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        return await asyncio.get_running_loop().create_server(make, sock=listener, backlog=BACKLOG)


async def _no_more() -> None:
    pass


def print_ready(http_port: int) -> None:
    """Print the ready line, which supervisors and tests wait for."""
    sys.stdout.write(json.dumps({"event": "ready", "http_port": http_port}) + "\n")
    sys.stdout.flush()


def make_server(settings: GatewaySettings, app: FastAPI, listener: socket.socket) -> GatewayServer:
    """Return the server for an application; `await server.serve(sockets=[listener])` runs it.

    Raises:
        SettingsError: the gateway's certificate cannot be used.
    """
    tls = GatewayTls.of(settings, getattr(app.state, "turns", None))
    protocol = http_protocol_class(
        head_timeout_s=settings.head_timeout_s,
        slots=ConnectionSlots(settings.connections_max, settings.address_connections_max),
        incoming=app.state.incoming,
        outgoing=app.state.outgoing,
        slow_timeout_s=settings.ws_slow_timeout_s,
        body_timeout_s=settings.body_timeout_s,
    )

    def encrypted(**options: Any) -> asyncio.BaseProtocol:
        assert tls is not None
        return tls.entrance.admit(protocol(**options))

    config = uvicorn.Config(
        direct_entry(app),
        interface="asgi3",
        loop="uvloop",
        http=protocol if tls is None else cast("type[asyncio.Protocol]", encrypted),
        ws=bounded_websocket(handshake_timeout_s=settings.head_timeout_s),
        ws_max_size=settings.ws_message_bytes_max,
        ws_per_message_deflate=False,  # Compression is off: it costs CPU time, and memory for each client.
        ws_ping_interval=settings.ws_ping_interval_s,
        ws_ping_timeout=settings.ws_ping_timeout_s,
        timeout_keep_alive=settings.keep_alive_timeout_s,
        timeout_graceful_shutdown=settings.stop_timeout_s,
        access_log=False,
        server_header=False,
        log_level="warning",
        proxy_headers=False,
    )
    return GatewayServer(config, app, listener.getsockname()[1], tls)


def serve(settings: GatewaySettings, context: Context | None = None) -> None:
    """Serve until a signal; `context` has the gateway's own credentials, by default those of the environment.

    Raises:
        OSError: the address cannot be bound.
        SettingsError: the gateway's certificate cannot be used.
    """
    listener = listen(settings)
    with contextlib.closing(listener):
        server = make_server(settings, create_app(settings, opener=partial(open_client, context=context)), listener)
        server.on_started = tune_server
        server.run(sockets=[listener])
