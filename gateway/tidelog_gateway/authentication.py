"""Who may send a request at all, as pure ASGI, before anything of its body is taken.

Every path asks who the caller is, if the gateway is told to, but the few that are named here: a route that is added
later asks, too, without a line. What belongs to no caller (an address with credentials in it, or that is no text, a
page of another host that would change something, a name that is not the gateway's where it asks nobody) is refused in
any case. A WebSocket is asked by its own route, as browsers can say who they are only in a message.
"""

from __future__ import annotations

import contextlib
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tidelog_gateway.addresses import refuse_unreadable
from tidelog_gateway.callers import Callers
from tidelog_gateway.client_script import CLIENT_SCRIPT_PATH
from tidelog_gateway.credentials import Shown, credentials_in, refuse_secrets_in, unauthenticated
from tidelog_gateway.hosts import Hosts
from tidelog_gateway.origins import refuse_foreign
from tidelog_gateway.problems import Problem
from tidelog_gateway.request_ids import request_id_of
from tidelog_gateway.settings import GatewaySettings

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics", "/openapi.json", "/docs", CLIENT_SCRIPT_PATH})
"""For operators, and what says how to use the rest: nothing here names a topic, a group or a caller."""
OPEN_BELOW: Final = "/docs/assets/"

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class AuthenticationMiddleware:
    """Lets in who has shown who he is; the routes find the gateway as he has it in the scope."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings) -> None:
        self.app = app
        self.settings = settings
        self._hosts = Hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        async with contextlib.AsyncExitStack() as using:
            try:
                credentials = self._credentials(scope)
                if credentials is not None:
                    callers: Callers = scope["app"].state.callers
                    using_it = callers.use(credentials, address_of(scope))
                    scope["state"]["gateway"] = await using.enter_async_context(using_it)
            except Problem as problem:
                await problem.response(request_id_of(scope))(scope, receive, send)
                return
            await self.app(scope, receive, send)

    def _credentials(self, scope: Scope) -> Shown | None:
        """Return what a request shows, None where nobody asks for it yet.

        Raises:
            Problem: it shows nothing, or is refused in any case.
        """
        refuse_secrets_in(scope["query_string"])
        refuse_unreadable(scope)
        headers = Headers(scope=scope)
        self._hosts.refuse_strange(headers, scope["path"])
        if scope["type"] == "websocket":
            return None
        if scope["method"] not in _READING:
            refuse_foreign(headers, self.settings.allowed_origins)
        if self._is_open(scope["path"]):
            return None
        credentials = credentials_in(headers)
        if credentials is None:
            raise unauthenticated()
        return credentials

    def _is_open(self, path: str) -> bool:
        return self.settings.auth == "none" or path in OPEN_PATHS or path.startswith(OPEN_BELOW)


def address_of(scope: Scope) -> str:
    """Return where a request comes from, "" when that is not known."""
    client = scope.get("client")
    return str(client[0]) if client else ""
