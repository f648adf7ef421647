"""Answers with a long list, which are encoded in parts between which other requests run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import Gateway, json_response

PART_ITEMS: Final = 400
"""Number of items that are encoded at once, in some 2 ms."""

T = TypeVar("T")


async def list_response(
    gateway: Gateway,
    request: Request,
    members: Mapping[str, Any],
    listed: tuple[str, Sequence[T]],
    view: Callable[[T], Any],
) -> Response:
    """Return an object as JSON whose last member is a list.

    Args:
        members: the members before the list.
        listed: the name of the list, and its items.
        view: returns an item as the API represents it.

    Raises:
        Problem: 503, the gateway stops; 499, the client has disconnected.
    """
    name, items = listed
    if len(items) <= PART_ITEMS:
        return json_response({**members, name: [view(item) for item in items]})
    pace = pace_of(gateway, request)
    head = orjson.dumps({**members, name: []})
    parts: list[bytes] = []
    for first in range(0, len(items), PART_ITEMS):
        await pace()
        parts.append(orjson.dumps([view(item) for item in items[first : first + PART_ITEMS]])[1:-1])
    return Response(b"%b%b]}" % (head[:-2], b",".join(parts)), media_type="application/json")
