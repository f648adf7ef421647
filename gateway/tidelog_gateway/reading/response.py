"""What answers that hold records have in common: their media type, their headers, and how they are paced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog_gateway.budget.response_reservation import reservation_of
from tidelog_gateway.context import Gateway
from tidelog_gateway.pace import pace_of
from tidelog_gateway.problems import invalid
from tidelog_gateway.reading.body import RecordsBody
from tidelog_gateway.reading.forms import form_of
from tidelog_gateway.reading.media_types import ARROW, CSV, JSON, RECORD_TYPES, preferred
from tidelog_gateway.reading.values import ValueEncoding

VARY: Final = {"Vary": "Accept"}

PARTITION_HEADERS: Final[tuple[str, ...]] = (
    "Tidelog-Next-Offset",
    "Tidelog-Log-Start-Offset",
    "Tidelog-High-Watermark",
)
NEXT_CURSOR_HEADER: Final = "Tidelog-Next-Cursor"
CAUGHT_UP_HEADER: Final = "Tidelog-Caught-Up"
PLACE_HEADERS: Final = (*PARTITION_HEADERS, NEXT_CURSOR_HEADER, CAUGHT_UP_HEADER)
"""Where to go on, of answers in forms that have no place for it."""

WRITTEN_SHARE: Final = 4
"""A quarter of what a connection may hold is written: it exists twice in the end, beside what was fetched."""

ValueEncodingQuery = Annotated[
    ValueEncoding | None,
    Query(
        description="How every value is written. `json`: the JSON that was sent, as it is; `utf8`: text; `base64`. An "
        "answer ends in front of a value that does not fit; a request that begins with one is answered 422. Without "
        "it each value is text, or base64 where it is not UTF-8."
    ),
]


class RecordsResponse(JSONResponse):
    """Records in the media type that the request prefers; JSON where it has no other preference."""

    media_types = RECORD_TYPES


ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            media_type: {"schema": {"type": "string", **({"format": "binary"} if media_type == ARROW else {})}}
            for media_type in RECORD_TYPES[1:]
        }
    }
}
"""The answers besides JSON, for the description of the API."""


def media_type_of(request: Request, encoding: ValueEncoding | None) -> str:
    """Return the media type of an answer with records; that one is acceptable was checked (`unsupported`).

    Raises:
        Problem: 422, the value encoding is none of this type.
    """
    accepts = request.headers.getlist("accept")
    media_type = (preferred(",".join(accepts), RECORD_TYPES) if any(accepts) else None) or JSON
    if media_type == ARROW and encoding == "base64":
        detail = f"is not possible in {ARROW}, whose values are bytes: leave value_encoding out"
        raise invalid([{"parameter": "value_encoding", "detail": detail}])
    return media_type


def body_of(
    gateway: Gateway,
    request: Request,
    media_type: str,
    encoding: ValueEncoding | None,
    *,
    numbered: bool,
    limits: tuple[int, int],
) -> RecordsBody:
    """Return the body of the answer to a request, empty.

    Args:
        gateway: the caller's.
        request: whose answer it is.
        media_type: as of `form_of`.
        encoding: as of `form_of`.
        numbered: as of `form_of`.
        limits: records, and bytes of payload.
    """
    records_max, bytes_max = limits
    return RecordsBody(
        form_of(media_type, encoding, numbered=numbered),
        encoding,
        reservation_of(request),
        pace_of(gateway, request),
        records_max=records_max,
        bytes_max=bytes_max,
        written_max=gateway.settings.connection_out_bytes_max // WRITTEN_SHARE,
    )


async def records_response(
    gateway: Gateway, body: RecordsBody, media_type: str, members: Mapping[str, Any], headers: Mapping[str, str]
) -> Response:
    """Return the answer; where its form has no place for the members that say where to go on, they are headers."""
    data = await body.finish(members)
    gateway.metrics.records_out.labels("http").inc(body.records)
    own = {**VARY, "Content-Type": _CONTENT_TYPES.get(media_type, media_type)}
    return Response(data, headers=own if media_type == JSON else {**own, **headers})


_CONTENT_TYPES: Final = {CSV: f"{CSV}; charset=utf-8; header=present"}
