"""The ASGI scope of a request."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote

from starlette.types import Scope

from tidelog_gateway.http1.head import Head

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


def scope_of(
    head: Head, *, server: tuple[str, int | None] | None, client: tuple[str, int] | None, scheme: str
) -> Scope:
    """Return the scope of a request without its state.

    Args:
        head: the request's head.
        server: local address of the connection.
        client: address of the client.
        scheme: `http` or `https`.
    """
    raw_path, _, query = head.target.partition(b"?")
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": head.version,
        "server": server,
        "client": client,
        "scheme": scheme,
        "method": head.method.decode("ascii"),
        "root_path": "",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": head.headers,
    }
