"""Headers of every answer that tell browsers and caches what they may not do with it, as pure ASGI.

Browsers do not guess a type (`nosniff`), run anything in an answer, or show it inside another page
(`frame-ancestors`), and caches do not keep it (`no-store`), since answers hold records and depend on the caller. An
answer that allows more, like the page of the documentation, has a header of its own.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

BROWSER_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_RAW: Final = tuple((name.lower().encode(), value.encode()) for name, value in BROWSER_HEADERS.items())


class BrowserHeadersMiddleware:
    """Adds `BROWSER_HEADERS` to answers, but those that an answer has already."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        await self.app(scope, receive, send if scope["type"] != "http" else _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            said = list(message.get("headers", []))
            own = {name.lower() for name, _ in said}
            message["headers"] = [*said, *(header for header in _RAW if header[0] not in own)]
        await send(message)

    return send_with_headers
