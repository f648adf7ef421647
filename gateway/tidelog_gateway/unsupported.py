"""Refuse headers and query parameters that the gateway does not implement, instead of ignoring them.

Health, metrics and the documentation take any request: load balancers and browsers add what they like.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final, get_args, get_origin

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from tidelog_gateway.problems import Problem, invalid
from tidelog_proto.printable import printable

JSON_TYPE: Final = "application/json"
KEYED_ROUTE: Final = "/v1/topics/{topic}/records"
ANSWERS: Final = "answers"
"""The attribute of a route's function that lists the media types of its answers, where it chooses among several."""
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SHOWN_CHARS_MAX: Final = 100


async def refuse_unsupported(request: Request) -> None:
    """Refuse what this route would ignore; a dependency of every route of the API.

    Raises:
        Problem: 400 an Idempotency-Key; 406 the route's media type is not accepted; 422 a query parameter that is
            unknown or given twice.
    """
    route = request.scope.get("route")
    takes_key = getattr(route, "path", "") == KEYED_ROUTE
    if request.method in _CHANGING and "idempotency-key" in request.headers and not takes_key:
        raise Problem(
            400,
            "idempotency_key_unsupported",
            f"Idempotency-Key is supported by POST {KEYED_ROUTE} alone, and this request would be carried out as often "
            "as it is sent: leave it out",
        )
    media_type = str(getattr(getattr(route, "response_class", None), "media_type", None) or JSON_TYPE)
    require_accepted(request, *getattr(getattr(route, "endpoint", None), ANSWERS, (media_type,)))
    if isinstance(route, APIRoute):
        fields = route.dependant.query_params
        lists = {field.alias for field in fields if _is_list(field.field_info.annotation)}
        refuse_unknown(request.query_params, {field.alias for field in fields}, lists)


def require_accepted(request: Request, *media_types: str) -> None:
    """Refuse a request that accepts none of these media types.

    Raises:
        Problem: 406.
    """
    accepts = request.headers.getlist("accept")
    if any(accepts) and not any(takes(",".join(accepts), media_type) for media_type in media_types):
        asked = printable(accepts[0], _SHOWN_CHARS_MAX)
        detail = f"answers are {' or '.join(media_types)}, which Accept: {asked} leaves out"
        raise Problem(406, "not_acceptable", detail)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def refuse_unknown(given: QueryParams, known: set[str], lists: Collection[str] = ()) -> None:
    """Refuse query parameters besides the known ones, and those that are given more than once.

    Args:
        given: by the request.
        known: the names of all.
        lists: of those that may be given more than once.

    Raises:
        Problem: 422; names them.
    """
    counts = Counter(name for name, _ in given.multi_items())
    there = f"there are {', '.join(sorted(known))}" if known else "this route takes no query parameters"
    errors = [
        {"parameter": name, "detail": f"is unknown; {there}" if name not in known else "is given more than once"}
        for name, count in counts.items()
        if name not in known or (count > 1 and name not in lists)
    ]
    if errors:
        raise invalid(errors)


def takes(accept: str, media_type: str = JSON_TYPE) -> bool:
    """Tell whether an Accept header (RFC 9110, 12.5.1) takes a media type: the most specific range counts."""
    wanted_kind, _, wanted_subtype = media_type.partition("/")
    ranges = {(wanted_kind, wanted_subtype), (wanted_kind, "*"), ("*", "*")}
    best, is_taken = -1, False
    for part in accept.split(","):
        media_range, *parameters = (word.strip().lower() for word in part.split(";"))
        kind, _, subtype = media_range.partition("/")
        if not media_range or (kind, subtype) not in ranges:
            continue
        specific = (kind != "*") + (subtype != "*")
        is_wanted = not any(_is_zero(parameter) for parameter in parameters)
        if specific > best or (specific == best and is_wanted):
            best, is_taken = specific, is_wanted
    return is_taken


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and not value.strip().strip("0.")
