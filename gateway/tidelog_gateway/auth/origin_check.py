"""From which pages browsers may change something here, or open a WebSocket.

A browser lets any page send requests to any host, from within the networks of whoever looks at it, and says in `Origin`
which page it was. What is shown of who asks is never a cookie, so a foreign page cannot act in another's name; but a
gateway that asks nobody would do as it is told. So requests that change something, and WebSockets, are refused to
pages of other hosts, unless `allowed_origins` names them. Reading is left to CORS: without leave a page does not see
what it was answered. Programs that are no browsers send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tidelog_gateway.problems import Problem

ANY_ORIGIN: Final = "*"
_SHOWN_CHARS: Final = 200


def refuse_foreign(headers: Headers, allowed: Sequence[str]) -> None:
    """Refuse a page of another host.

    Raises:
        Problem: 403.
    """
    origins = headers.getlist("origin")
    if all(origin_allowed(origin, host=headers.get("host", ""), allowed=allowed) for origin in origins):
        return
    shown = origins[0][:_SHOWN_CHARS]
    raise Problem(403, "forbidden", f"pages of {shown} may not connect: add it to the setting allowed_origins")


def origin_allowed(origin: str, *, host: str, allowed: Sequence[str]) -> bool:
    """Say whether a page of `origin` may connect: a page of this host, or one that the settings name."""
    if ANY_ORIGIN in allowed or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and parts.netloc == host
