"""Answers in JSON: views of the client's objects, and long lists, encoded in parts between which other requests run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import Gateway, json_response

PART_ITEMS: Final = 400
"""Number of items that are encoded at once, in some 2 ms."""

T = TypeVar("T")


def view_maker(view: type[BaseModel], of: type[T], **made: Callable[[T], Any]) -> Callable[[T], dict[str, Any]]:
    """Return a function that converts an object to the members of a view.

    A field gets the value of the object's attribute with the same name. A field NAME_ms whose object has no such
    attribute gets the attribute NAME_us, converted to milliseconds; None stays None.

    Args:
        view: the model that names the fields.
        of: class of the objects.
        made: name of a field -> function that computes its value from an object.

    Raises:
        TypeError: the class has no attribute for a field.
    """
    fields = tuple(view.model_fields)
    names = tuple(name for name in fields if name not in made)
    attributes = [_attribute_of(view, of, name) for name in names]
    in_us = [name for name, attribute in zip(names, attributes, strict=True) if name != attribute]
    values_of: Callable[[T], tuple[Any, ...]] = attrgetter(*attributes)

    def view_of(item: T) -> dict[str, Any]:
        members = dict(zip(names, values_of(item), strict=True))
        for name in in_us:
            value_us = members[name]
            members[name] = None if value_us is None else value_us // 1000
        for name, make in made.items():
            members[name] = make(item)
        return {name: members[name] for name in fields} if made else members

    return view_of


def _attribute_of(view: type[BaseModel], of: type[Any], name: str) -> str:
    for attribute in (name, f"{name.removesuffix('_ms')}_us"):
        if hasattr(of, attribute):
            return attribute
    raise TypeError(f"{of.__name__} has no attribute for the field {name!r} of {view.__name__}")


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
        listed: the name of the list, and the items of the list.
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
