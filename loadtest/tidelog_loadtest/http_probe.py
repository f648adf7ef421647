"""The probes of `tidelog bench gateway`: routes that do the framework's part of a request and nothing else.

A process of its own: FastAPI on uvicorn with the event loop and the settings of the gateway. `/empty` is a route
without work, `/decode` decodes and validates a body of records with msgspec, `/bytes` returns bytes from memory.
"""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

import msgspec
import uvicorn
from fastapi import FastAPI, Request, Response

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


def probe_app(when_ready: Callable[[], None]) -> FastAPI:
    """Return the application; `PUT /bytes` keeps the body that `GET /bytes` returns."""
    decoder = msgspec.json.Decoder(_Body)
    kept = b""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
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
        nonlocal kept
        kept = await request.body()
        return Response(status_code=204)

    @app.get(_BYTES)
    async def stored() -> Response:
        return Response(kept, media_type=_JSON)

    return app


def main() -> None:
    """Serve on a free loopback port; the parent reads it from the ready line."""
    parser = argparse.ArgumentParser(description="The probe of the gateway's benchmark")
    parser.add_argument("--parser", choices=("h11", "httptools"), default="httptools", help="uvicorn's HTTP parser")
    http: Literal["h11", "httptools"] = parser.parse_args().parser
    listener = socket.create_server(("127.0.0.1", 0))
    ready = json.dumps({"event": "ready", "http_port": listener.getsockname()[1]})
    app = probe_app(lambda: print(ready, flush=True))  # noqa: T201 - the parent reads this line
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
