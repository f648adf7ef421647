"""A probe of live delivery: a FastAPI application that sends the same text to all its WebSockets.

It is the shortest application that broadcasts with FastAPI's `send_text`, on the server, event loop and protocol of the
gateway. It understands the texts of the feed of `bare_broadcast.py`: `relay TEXT` and `repeat RATE COUNT TEXT`.
"""

from __future__ import annotations

import json
import socket
import sys
from functools import partial
from typing import Final

import uvicorn
from fastapi import FastAPI, WebSocket, WebSocketDisconnect

from tidelog_loadtest.measure.steady_rate import at_rate

app: Final = FastAPI()
_SUBSCRIBERS: Final[set[WebSocket]] = set()


@app.websocket("/")
async def subscribe(websocket: WebSocket) -> None:
    """Send the broadcasts to this WebSocket until it closes."""
    await websocket.accept()
    _SUBSCRIBERS.add(websocket)
    try:
        await websocket.receive_text()
    except WebSocketDisconnect:
        pass
    finally:
        _SUBSCRIBERS.discard(websocket)


@app.websocket("/feed")
async def feed(websocket: WebSocket) -> None:
    """Broadcast what this WebSocket sends."""
    await websocket.accept()
    while True:
        try:
            kind, _, rest = (await websocket.receive_text()).partition(" ")
        except WebSocketDisconnect:
            return
        if kind == "relay":
            await _broadcast(rest)
        else:
            rate, count, text = rest.split(" ", 2)
            await at_rate(float(rate), int(count), partial(_broadcast, text))


async def _broadcast(text: str) -> None:
    for subscriber in tuple(_SUBSCRIBERS):
        await subscriber.send_text(text)


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
            app,
            loop="uvloop",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            lifespan="off",
            access_log=False,
            log_level="warning",
        )
        _Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
