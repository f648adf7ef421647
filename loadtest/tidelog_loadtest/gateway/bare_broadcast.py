"""The probe of live delivery: a WebSocket server that broadcasts frames without any other work.

It is uvicorn with the same event loop and protocol. One client connects to `/feed` and sends commands; the frames are
written to the transports of all other connections. There is no credit, no position and no limit. A command is one of

- `relay TEXT`: broadcast this text once, like a relay that receives the frames to send.
- `repeat RATE COUNT TEXT`: broadcast this text COUNT times from memory, RATE times per second.
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
    """One WebSocket; all except the feed receive the broadcasts."""

    def handle_connect(self, event: Any) -> None:
        """Accept a handshake."""
        super().handle_connect(event)
        if event.path != "/feed":
            _TRANSPORTS.add(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the transport."""
        _TRANSPORTS.discard(self.transport)
        super().connection_lost(exc)


async def application(_: Any, receive: Any, send: Any) -> None:
    """Accept a WebSocket and execute the commands that it sends."""
    while True:
        event = await receive()
        if event["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        elif event["type"] == "websocket.receive":
            kind, _, rest = event["text"].partition(" ")
            if kind == "relay":
                _broadcast(_frame(rest))
            else:
                rate, count, text = rest.split(" ", 2)
                await _repeat(_frame(text), float(rate), int(count))
        else:
            return


def _frame(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=False)


def _broadcast(frame: bytes) -> None:
    for transport in _TRANSPORTS:
        transport.write(frame)


async def _repeat(frame: bytes, rate: float, count: int) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for at in range(count):
        await asyncio.sleep(max(0.0, begin + at / rate - loop.time()))
        _broadcast(frame)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        assert sockets is not None
        sys.stdout.write(json.dumps({"event": "ready", "http_port": sockets[0].getsockname()[1]}) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run the probe as a separate process."""
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
