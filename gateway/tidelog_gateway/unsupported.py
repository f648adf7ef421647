"""Refuse headers and query parameters that the gateway does not implement, instead of ignoring them.

Health, metrics and the documentation take any request: load balancers and browsers add what they like.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from tidelog_gateway.problems import Problem, invalid
from tidelog_proto.printable import printable

JSON_TYPE: Final = "application/json"
KEYED_ROUTE: Final = "/v1/topics/{topic}/records"
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
    accepts = request.headers.getlist("accept")
    media_type = str(getattr(getattr(route, "response_class", None), "media_type", None) or JSON_TYPE)
    if any(accepts) and not takes(",".join(accepts), media_type):
        asked = printable(accepts[0], _SHOWN_CHARS_MAX)
        raise Problem(406, "not_acceptable", f"answers are {media_type}, which Accept: {asked} leaves out")
    if isinstance(route, APIRoute):
        refuse_unknown(request.query_params, {field.alias for field in route.dependant.query_params})


def refuse_unknown(given: QueryParams, known: set[str]) -> None:
    """Refuse query parameters besides the known ones, and those that are given more than once.

    Raises:
        Problem: 422; names them.
    """
    counts = Counter(name for name, _ in given.multi_items())
    there = f"there are {', '.join(sorted(known))}" if known else "this route takes no query parameters"
    errors = [
        {"parameter": name, "detail": f"is unknown; {there}" if name not in known else "is given more than once"}
        for name, count in counts.items()
        if name not in known or count > 1
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
