"""Check of the header `Origin`: which web pages may send changing requests to the gateway or open WebSockets.

A browser lets any page send requests to any host, also within its user's private network, and names the page in
`Origin`. Credentials are never cookies, so a foreign page cannot act as another caller; but a gateway without
authentication would execute its requests. Changing requests and WebSockets from pages of other hosts are therefore
refused unless `allowed_origins` lists them. Reads are left to CORS, which hides the answer from the page. Clients other
than browsers send no `Origin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from tidelog_gateway.problems import Problem

ANY_ORIGIN: Final = "*"
_SHOWN_CHARS: Final = 200


def refuse_foreign_origin(headers: Headers, allowed: Sequence[str]) -> None:
    """Refuse a request from a page of another host, unless `allowed` lists the origin.

    Raises:
        Problem: 403.
    """
    origins = headers.getlist("origin")
    if all(origin_allowed(origin, host=headers.get("host", ""), allowed=allowed) for origin in origins):
        return
    quoted_origin = origins[0][:_SHOWN_CHARS]
    raise Problem(
        403,
        "forbidden",
        f"pages of {quoted_origin} may not use this gateway; to allow them, add the origin to the setting "
        "allowed_origins (TIDELOG_GATEWAY_ALLOWED_ORIGINS, --allow-origin)",
    )


def origin_allowed(origin: str, *, host: str, allowed: Sequence[str]) -> bool:
    """Return whether a page of `origin` may connect: one of `host`, or of an origin in `allowed` (`*` allows all)."""
    if ANY_ORIGIN in allowed or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and parts.netloc == host
