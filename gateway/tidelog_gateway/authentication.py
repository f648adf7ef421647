"""Who may send a request at all, before anything of its body is taken.

Every path asks who the caller is, if the gateway is told to, but the few that are named here: a route that is added
later asks, too, without a line. What belongs to no caller (an address with credentials in it, or that is no text, a
page of another host that would change something, a name that is not the gateway's where it asks nobody) is refused in
any case. A WebSocket is asked by its own route, as browsers can say who they are only in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from tidelog_gateway.addresses import refuse_unreadable
from tidelog_gateway.credentials import Shown, credentials_in, refuse_secrets_in, unauthenticated
from tidelog_gateway.hosts import Hosts
from tidelog_gateway.origins import refuse_foreign
from tidelog_gateway.settings import GatewaySettings

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/", "/ui"})
"""For operators, and what says how to use the rest: nothing here names a topic, a group or a caller."""
OPEN_BELOW: Final = ("/docs/assets/", "/ui/")
"""Files that are the same for everybody."""

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class Admission:
    """Judges the head of a request: refuses what no caller may send, and finds the credentials that it shows."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._allowed_origins = settings.allowed_origins
        self._asks = settings.auth != "none"
        self._hosts = Hosts(settings)

    def credentials(self, scope: Scope, fields: Mapping[bytes, bytes]) -> Shown | None:
        """Return what a request shows, None where nobody asks for it yet.

        Args:
            scope: of the request, or of a WebSocket's handshake.
            fields: its headers; of one that is given more than once any.

        Raises:
            Problem: it shows nothing, or is refused in any case.
        """
        path = scope["path"]
        if scope["query_string"]:
            refuse_secrets_in(scope["query_string"])
        refuse_unreadable(scope)
        headers: Headers | None = None
        if len(fields) != len(scope["headers"]) or not self._hosts.is_known(fields.get(b"host")):
            headers = Headers(scope=scope)
            self._hosts.refuse_strange(headers, path)
        if scope["type"] == "websocket":
            return None
        if b"origin" in fields and scope["method"] not in _READING:
            refuse_foreign(headers or Headers(scope=scope), self._allowed_origins)
        if not self._asks or path in OPEN_PATHS or path.startswith(OPEN_BELOW):
            return None
        credentials = credentials_in(headers or Headers(scope=scope))
        if credentials is None:
            raise unauthenticated()
        return credentials


def address_of(scope: Scope) -> str:
    """Return where a request comes from, "" when that is not known."""
    client = scope.get("client")
    return str(client[0]) if client else ""
