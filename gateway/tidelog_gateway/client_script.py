"""`/ui/client.js`: the JavaScript client as one ES module, for pages that the gateway serves and for others.

The file is part of the package. Browsers keep it and ask each time whether it is current, by its `ETag`, so that a page
never runs the client of an older gateway.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Final, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

CLIENT_SCRIPT_PATH: Final = "/ui/client.js"

router = APIRouter(include_in_schema=False)


class _Script(NamedTuple):
    data: bytes
    etag: str


@lru_cache(maxsize=1)
def _script() -> _Script:
    data = files("tidelog_gateway").joinpath("ui", "client.js").read_bytes()
    return _Script(data, f'"{hashlib.sha256(data).hexdigest()[:32]}"')


@router.get(CLIENT_SCRIPT_PATH)
async def client_script(request: Request) -> Response:
    """Return the client, or 304 where the caller's copy is current."""
    script = _script()
    headers = {"ETag": script.etag, "Cache-Control": "no-cache"}
    if _is_current(request.headers.getlist("if-none-match"), script.etag):
        return Response(status_code=304, headers=headers)
    return Response(script.data, media_type="text/javascript; charset=utf-8", headers=headers)


def _is_current(held: list[str], etag: str) -> bool:
    """Compare weakly, as RFC 9110 (13.1.2) says."""
    tags = {tag.strip().removeprefix("W/") for line in held for tag in line.split(",")}
    return "*" in tags or etag in tags
