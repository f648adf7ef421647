"""Refusal of headers and query parameters that the gateway would otherwise ignore.

Health, metrics, the web page `/ui` and the documentation allow any header, because load balancers and browsers add
their own.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final, get_args, get_origin

from fastapi import Request
from fastapi._compat import ModelField
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from tidelog_gateway.problems import Problem, invalid, shown
from tidelog_gateway.requests.content_negotiation import JSON, preferred
from tidelog_gateway.requests.parameters import INTEGER_DETAIL, is_integer
from tidelog_proto.printable import printable

KEYED_ROUTE: Final = "/v1/topics/{topic}/records"
ANSWERS: Final = "answers"
"""The attribute of a route's function with the media types of its answers, if there are several."""
IGNORES_QUERY: Final = "ignores_query"
"""The attribute of a static file's function, whose query only distinguishes versions in caches: `client.js?v=2`."""
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_SHOWN_CHARS_MAX: Final = 100


async def refuse_unsupported(request: Request) -> None:
    """Refuse headers and parameters that this route would ignore; a dependency of every route of the API.

    Raises:
        Problem: 400, an Idempotency-Key; 406, the route's media type is not accepted; 422, a query parameter is unknown
            or repeated.
    """
    route = request.scope.get("route")
    takes_key = getattr(route, "path", "") == KEYED_ROUTE
    if request.method in _CHANGING and "idempotency-key" in request.headers and not takes_key:
        raise Problem(
            400,
            "idempotency_key_unsupported",
            f"only POST {KEYED_ROUTE} supports Idempotency-Key; a retry of this request would be executed again: "
            "leave the header out",
        )
    require_accepted(request, offered_by(route))
    await refuse_unknown_parameters(request)


async def refuse_unknown_parameters(request: Request) -> None:
    """Refuse unknown and repeated query parameters, and unusual forms of integers; a dependency of every route.

    Static files ignore their query.

    Raises:
        Problem: 422.
    """
    route = request.scope.get("route")
    if isinstance(route, APIRoute) and not getattr(route.endpoint, IGNORES_QUERY, False):
        fields = route.dependant.query_params
        lists = {field.alias for field in fields if _is_list(field.field_info.annotation)}
        refuse_unknown(request.query_params, {field.alias for field in fields}, lists)
        integers = {field.alias for field in (*fields, *route.dependant.path_params) if _is_integer(field)}
        _refuse_unusual_integers(integers, request.path_params | dict(request.query_params))


def require_accepted(request: Request, offered: tuple[str, ...]) -> None:
    """Refuse a request that accepts none of these media types.

    Raises:
        Problem: 406, with the offered types.
    """
    accepts = request.headers.getlist("accept")
    if any(accepts) and preferred(",".join(accepts), offered) is None:
        accepted = printable(accepts[0], _SHOWN_CHARS_MAX)
        raise Problem(
            406,
            "not_acceptable",
            f"answers are {' or '.join(offered)}, which Accept: {accepted} excludes; accept one of them",
            extra={"offered": list(offered)},
            headers={"Vary": "Accept"} if len(offered) > 1 else {},
        )


def offered_by(route: Any) -> tuple[str, ...]:
    """Return the media types of a route's answers, the preferred one first."""
    response_class = getattr(route, "response_class", None)
    several: tuple[str, ...] = getattr(response_class, "media_types", ())
    several = several or getattr(getattr(route, "endpoint", None), ANSWERS, ())
    return several or (str(getattr(response_class, "media_type", None) or JSON),)


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _is_integer(field: ModelField) -> bool:
    annotation = field.field_info.annotation
    return annotation is int or int in get_args(annotation)


def _refuse_unusual_integers(names: Collection[str], parameters: Mapping[str, str]) -> None:
    """Refuse integer parameters that are not plain decimal digits.

    Raises:
        Problem: 422, with their names.
    """
    errors = [
        {"parameter": name, "detail": f"{INTEGER_DETAIL}, got {shown(text)}"}
        for name, text in parameters.items()
        if name in names and not is_integer(text)
    ]
    if errors:
        raise invalid(errors)


def refuse_unknown(given: QueryParams, known: set[str], lists: Collection[str] = ()) -> None:
    """Refuse unknown query parameters, and repeated ones.

    Args:
        given: parameters of the request.
        known: names of the parameters of the route.
        lists: names of parameters that may be repeated.

    Raises:
        Problem: 422, with their names.
    """
    counts = Counter(name for name, _ in given.multi_items())
    errors = [
        {
            "parameter": name,
            "detail": _unknown(name, known) if name not in known else "is given more than once; send it once",
        }
        for name, count in counts.items()
        if name not in known or (count > 1 and name not in lists)
    ]
    if errors:
        raise invalid(errors)


def _unknown(name: str, known: set[str]) -> str:
    if not known:
        return "is unknown; this route takes no query parameters"
    near = difflib.get_close_matches(name[:_SHOWN_CHARS_MAX], known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"is unknown; {meant}the parameters are {', '.join(sorted(known))}"
