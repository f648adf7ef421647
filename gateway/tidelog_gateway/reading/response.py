"""Common parts of responses with records: media type, headers and limits of the body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidelog_gateway.budget.response_reservation import reservation_of
from tidelog_gateway.callers.turns import pace_of
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import invalid
from tidelog_gateway.reading.body import RecordsBody
from tidelog_gateway.reading.formats import RecordFormat, RowsFormat, format_for
from tidelog_gateway.reading.row_selection import RowSelection
from tidelog_gateway.reading.values import ValueEncoding
from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON, RECORD_TYPES, preferred
from tidelog_proto.batch.row_reader import row_reader

VARY: Final = {"Vary": "Accept"}

PARTITION_HEADERS: Final[tuple[str, ...]] = (
    "Tidelog-Next-Offset",
    "Tidelog-Log-Start-Offset",
    "Tidelog-High-Watermark",
)
NEXT_CURSOR_HEADER: Final = "Tidelog-Next-Cursor"
CAUGHT_UP_HEADER: Final = "Tidelog-Caught-Up"
PLACE_HEADERS: Final = (*PARTITION_HEADERS, NEXT_CURSOR_HEADER, CAUGHT_UP_HEADER)
"""Headers with the position of the next read, for formats whose body cannot contain it."""

WRITTEN_SHARE: Final = 4
"""A body may have at most a connection's share of the response budget divided by this number, because the body exists
twice while its parts are joined, and the fetched batches are in memory as well."""

ValueEncodingQuery = Annotated[
    ValueEncoding | None,
    Query(
        description="Encoding of all values. `json`: the published JSON, unchanged; `utf8`: text; `base64`. A response "
        "ends before the first value that does not fit; if that is the first record, the status is 422. By default "
        "each value is text, or base64 if it is not UTF-8; in a typed topic it is a JSON object."
    ),
]


class RecordsResponse(JSONResponse):
    """Records in the media type that the request prefers; JSON by default."""

    media_types = RECORD_TYPES


ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "content": {
            media_type: {"schema": {"type": "string", **({"format": "binary"} if media_type == ARROW else {})}}
            for media_type in RECORD_TYPES[1:]
        }
    }
}
"""Responses other than JSON, for the OpenAPI description."""


def media_type_of(request: Request, encoding: ValueEncoding | None) -> str:
    """Return the media type of a response with records; `unsupported` has checked that one is acceptable.

    Raises:
        Problem: 422, the media type does not support the value encoding.
    """
    accepts = request.headers.getlist("accept")
    media_type = (preferred(",".join(accepts), RECORD_TYPES) if any(accepts) else None) or JSON
    if media_type == ARROW and encoding == "base64":
        detail = f"base64 is not supported in {ARROW}, which has values as bytes: leave value_encoding out"
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
    rows: RowSelection | None = None,
) -> RecordsBody:
    """Return the empty body of the response to a request.

    Args:
        media_type: see `format_for`.
        encoding: see `format_for`.
        numbered: see `format_for`.
        limits: maximum records, and maximum bytes of payload.
        rows: of a typed topic; None: the topic is not typed.

    Raises:
        Problem: 422, a value encoding is requested of rows as Arrow columns.
    """
    record_format: RecordFormat
    if rows is not None and media_type == ARROW:
        if encoding is not None:
            detail = f"does not apply to a typed topic in {ARROW}, which has fields as columns: leave it out"
            raise invalid([{"parameter": "value_encoding", "detail": detail}])
        record_format = RowsFormat(row_reader(rows.schema, rows.schema, rows.columns).record_schema)
    else:
        encoding = encoding or ("json" if rows is not None else None)
        record_format = format_for(media_type, encoding, numbered=numbered)
    records_max, bytes_max = limits
    return RecordsBody(
        record_format,
        encoding,
        reservation_of(request),
        pace_of(gateway, request),
        records_max=records_max,
        bytes_max=bytes_max,
        written_max=gateway.settings.connection_out_bytes_max // WRITTEN_SHARE,
        rows=rows,
    )


async def records_response(
    gateway: Gateway, body: RecordsBody, media_type: str, members: Mapping[str, Any], headers: Mapping[str, str]
) -> Response:
    """Return the response; for formats other than JSON, the position of the next read is in headers."""
    data = await body.finish(members)
    gateway.metrics.records_out.tally("http").inc(body.records)
    own = {**VARY, "Content-Type": _CONTENT_TYPES.get(media_type, media_type)}
    return Response(data, headers=own if media_type == JSON else {**own, **headers})


_CONTENT_TYPES: Final = {CSV: f"{CSV}; charset=utf-8; header=present"}
