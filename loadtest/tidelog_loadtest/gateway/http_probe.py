"""The probes of `tidelog bench gateway`: routes that only do the framework's part of a request.

The probes run in a process of their own: FastAPI on uvicorn with the event loop and settings of the gateway. `/empty`
is a route without work, `/decode` decodes and validates a body of records with msgspec, `/bytes` returns bytes from
memory. `/send-arrow` is the probe of an Arrow body: this process publishes the columns with the native client in a
closed loop. `/receive-arrow` publishes the columns of a body that it receives, as an application that receives HTTP
requests itself would do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import uvicorn
from fastapi import FastAPI, Request, Response

from tidelog import Client, Producer

_BYTES: Final = "/bytes"
_JSON: Final = "application/json"


class _Record(msgspec.Struct, forbid_unknown_fields=True):
    value: Any
    key: str | None = None
    value_encoding: Literal["utf8", "base64", "json"] = "utf8"
    key_encoding: Literal["utf8", "base64"] = "utf8"
    tag: str | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    records: list[_Record]


def probe_app(when_ready: Callable[[], None], bootstrap: str = "") -> FastAPI:
    """Return the application; `PUT /bytes` keeps the body that `GET /bytes` returns.

    Args:
        when_ready: called when the application serves.
        bootstrap: the node that `/send-arrow` and `/receive-arrow` publish to.
    """
    decoder = msgspec.json.Decoder(_Body)
    stored_body = b""
    exits, opening = AsyncExitStack(), asyncio.Lock()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with exits:
            when_ready()
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/empty")
    async def empty() -> dict[str, str]:
        return {}

    @app.post("/decode")
    async def decode(request: Request) -> Response:
        body = decoder.decode(await request.body())
        return Response(b'{"records":%d}' % len(body.records), media_type=_JSON)

    @app.put(_BYTES)
    async def keep(request: Request) -> Response:
        nonlocal stored_body
        stored_body = await request.body()
        return Response(status_code=204)

    @app.get(_BYTES)
    async def stored() -> Response:
        return Response(stored_body, media_type=_JSON)

    @app.post("/send-arrow/{topic}")
    async def send_arrow(topic: str, connections: int, seconds: float, request: Request) -> dict[str, float]:
        (columns,) = pa.ipc.open_stream(await request.body()).read_all().to_batches()
        async with Client(bootstrap, client_id="tidelog-bench") as client, client.producer(topic) as producer:
            began_s = time.perf_counter()
            until_s = began_s + seconds

            async def loop() -> int:
                sends = 0
                while time.perf_counter() < until_s:
                    await producer.send_arrow(columns)
                    sends += 1
                return sends

            sends = sum(await asyncio.gather(*(loop() for _ in range(connections))))
            return {"requests": sends, "seconds": time.perf_counter() - began_s}

    producers: dict[str, Producer] = {}

    @app.post("/receive-arrow/{topic}")
    async def receive_arrow(topic: str, request: Request) -> Response:
        (columns,) = pa.ipc.open_stream(await request.body()).read_all().to_batches()
        columns.validate(full=True)
        async with opening:
            if topic not in producers:
                client = await exits.enter_async_context(Client(bootstrap, client_id="tidelog-bench"))
                producers[topic] = await exits.enter_async_context(client.producer(topic))
        await producers[topic].send_arrow(columns)
        return Response(b'{"records":%d}' % columns.num_rows, media_type=_JSON)

    return app


def main() -> None:
    """Serve on a free loopback port; the parent reads it from the ready line."""
    parser = argparse.ArgumentParser(description="The probe of the gateway's benchmark")
    parser.add_argument("--parser", choices=("h11", "httptools"), default="httptools", help="uvicorn's HTTP parser")
    parser.add_argument("--bootstrap", default="", help="a node, HOST:PORT, for the probe of Arrow bodies")
    arguments = parser.parse_args()
    http: Literal["h11", "httptools"] = arguments.parser
    listener = socket.create_server(("127.0.0.1", 0))
    ready = json.dumps({"event": "ready", "http_port": listener.getsockname()[1]})
    app = probe_app(lambda: print(ready, flush=True), arguments.bootstrap)  # noqa: T201 - the parent reads this line
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="warning",
        timeout_keep_alive=90,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
