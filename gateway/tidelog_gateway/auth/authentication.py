"""Authentication of requests, before any of the body is read.

With `auth = callers` every path requires credentials, except those of `OPEN_PATHS` and `OPEN_BELOW`: a new route
requires them by default. With any `auth`, these requests are refused: a URL that contains credentials or invalid
percent-encoding, a changing request from a page of another host, and a foreign `Host` on a gateway without
authentication. The route of a WebSocket authenticates it, since browsers can send credentials only in a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from tidelog_gateway.auth.credentials import CallerCredentials, credentials_in, refuse_secrets_in, unauthenticated
from tidelog_gateway.auth.host_check import HostCheck
from tidelog_gateway.auth.origin_check import refuse_foreign_origin
from tidelog_gateway.auth.url_encoding import check_url_encoding
from tidelog_gateway.settings import GatewaySettings

OPEN_PATHS: Final = frozenset({"/livez", "/readyz", "/metrics", "/openapi.json", "/docs", "/", "/ui"})
"""Paths that need no credentials: for operators, and the description of the API. Their answers reveal no topic,
group or caller."""
OPEN_BELOW: Final = ("/docs/assets/", "/ui/")
"""Path prefixes of static files, which need no credentials."""

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class RequestAuthenticator:
    """Checks the head of a request: refuses forbidden requests and extracts the credentials."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._allowed_origins = settings.allowed_origins
        self._requires_credentials = settings.auth != "none"
        self._hosts = HostCheck(settings)

    def credentials(self, scope: Scope, fields: Mapping[bytes, bytes]) -> CallerCredentials | None:
        """Return the credentials of a request; None if it needs no credentials here.

        A request needs none if the gateway does not authenticate callers, if its path is open, or if it is the
        handshake of a WebSocket, whose route authenticates it.

        Args:
            scope: the ASGI scope of the request, or of a WebSocket's handshake.
            fields: the headers of the request; of a repeated header only one value.

        Raises:
            Problem: the credentials are missing or malformed, or the request is refused whatever its credentials are.
        """
        path = scope["path"]
        if scope["query_string"]:
            refuse_secrets_in(scope["query_string"])
        check_url_encoding(scope)
        headers: Headers | None = None
        if len(fields) != len(scope["headers"]) or not self._hosts.is_known(fields.get(b"host")):
            headers = Headers(scope=scope)
            self._hosts.refuse_foreign_host(headers, path)
        if scope["type"] == "websocket":
            return None
        if b"origin" in fields and scope["method"] not in _READING:
            refuse_foreign_origin(headers or Headers(scope=scope), self._allowed_origins)
        if not self._requires_credentials or path in OPEN_PATHS or path.startswith(OPEN_BELOW):
            return None
        credentials = credentials_in(headers or Headers(scope=scope))
        if credentials is None:
            raise unauthenticated()
        return credentials


def address_of(scope: Scope) -> str:
    """Return the address of a request's client, "" when it is not known."""
    client = scope.get("client")
    return str(client[0]) if client else ""
