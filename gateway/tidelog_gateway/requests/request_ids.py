"""An id for each request, in the answer's head and in problem documents; the gateway chooses it, not the client."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

REQUEST_ID_HEADER: Final = "X-Request-Id"


def request_id_of(scope: Scope) -> str:
    """Return the id of a request."""
    return str(scope.get("state", {}).get("request_id", ""))
