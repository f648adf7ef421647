"""Routes with a JSON body: checks that bound the framework's work before it parses the body."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from tidelog_gateway.bodies.content_type import require_json
from tidelog_gateway.bodies.json_body import AT_ONCE_BYTES, MEMBERS_MAX, check_values
from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import gateway_of
from tidelog_gateway.problems import invalid
from tidelog_gateway.requests.repeated_members import NOTHING, Members, check_repeats, has_repeat, parse_pairs


class JsonRoute(APIRoute):
    """A route whose body, if it has one, must be JSON in UTF-8.

    The framework itself accepts UTF-16 and UTF-32, creates objects for all values, and lists all faults. The encoding
    and the numbers of values and members are therefore checked before.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the framework's handler, preceded by the checks."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def checked(request: Request) -> Response:
            require_json(request)
            body = await request.body()
            pace = pace_of(gateway_of(request), request)
            if len(body) > AT_ONCE_BYTES:
                await pace()  # even a body that is refused below takes milliseconds
            try:
                if not body.isascii():
                    body.decode()
            except UnicodeDecodeError as error:
                raise invalid([{"pointer": "", "detail": "the body is not UTF-8; send JSON in UTF-8"}]) from error
            if b"\0" in body:  # ASCII in UTF-16 is valid UTF-8, but not JSON.
                detail = "the body has zero bytes, as UTF-16 does; send JSON in UTF-8"
                raise invalid([{"pointer": "", "detail": detail}])
            if len(body) > AT_ONCE_BYTES:
                await check_values(body, pace)
            _check_members(body)
            if len(body) > AT_ONCE_BYTES:
                await pace()  # the framework validates the body at once
            return await handle(request)

        return checked


def _check_members(body: bytes) -> None:
    """Refuse objects with more members than any model has, and repeated members.

    The framework refuses a body that is not JSON.

    Raises:
        Problem: 422.
    """
    is_repeated = False

    def counted(members: list[tuple[str, Any]]) -> Members:
        nonlocal is_repeated
        if len(members) > MEMBERS_MAX:
            detail = f"an object in the body has {len(members)} members; at most {MEMBERS_MAX} are allowed"
            raise invalid([{"pointer": "", "detail": detail}])
        is_repeated = is_repeated or has_repeat(members)
        return tuple(members)

    try:
        document = parse_pairs(body, counted)
    except (ValueError, RecursionError):
        return
    if is_repeated:
        check_repeats(document, opaque=NOTHING)
