"""The bare broadcast beside live delivery: a WebSocket server of the gateway's kind that writes what it is given.

It is uvicorn with the same event loop and protocol. One client connects to `/feed`; every text that it sends becomes
one frame, which is written to the transports of all others. There is no credit, no position and no bound.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any, Final

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

_TRANSPORTS: Final[set[asyncio.Transport]] = set()


class BroadcastProtocol(WebSocketsSansIOProtocol):
    """One WebSocket, whose transport is broadcast to unless it is the feed."""

    def handle_connect(self, event: Any) -> None:
        """Take a handshake."""
        super().handle_connect(event)
        if event.path != "/feed":
            _TRANSPORTS.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the transport."""
        _TRANSPORTS.discard(self.transport)
        super().connection_lost(exc)


async def application(_: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket and broadcast what it sends."""
    while True:
        event = await receive()
        if event["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        elif event["type"] == "websocket.receive":
            frame = Frame(Opcode.TEXT, event["text"].encode()).serialize(mask=False)
            for transport in _TRANSPORTS:
                transport.write(frame)
        else:
            return


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        assert sockets is not None
        sys.stdout.write(json.dumps({"event": "ready", "http_port": sockets[0].getsockname()[1]}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run the probe as a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(
            application,
            loop="uvloop",
            ws=BroadcastProtocol,
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        _Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
