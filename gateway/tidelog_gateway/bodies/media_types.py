"""The media types of a publish, and the form of a body by the head of its request."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request

from tidelog_gateway.context import media_type_of, require_utf8, unsupported_media_type
from tidelog_gateway.problems import invalid
from tidelog_gateway.reading.media_types import ARROW, CSV, JSON
from tidelog_gateway.reading.media_types import NDJSON as JSON_LINES

__all__ = [
    "ARROW",
    "BINARY_CLOUDEVENT",
    "CLOUDEVENT",
    "CLOUDEVENTS",
    "CSV",
    "JSON",
    "JSON_LINES",
    "PROTOBUF",
    "PROTOBUF_REGISTERED",
    "RAW",
    "TAKEN",
    "form_of",
]

RAW: Final = "application/octet-stream"
PROTOBUF: Final = "application/x-protobuf"
PROTOBUF_REGISTERED: Final = "application/protobuf"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"

TAKEN: Final = (JSON, RAW, JSON_LINES, CSV, ARROW, PROTOBUF, PROTOBUF_REGISTERED, CLOUDEVENT, CLOUDEVENTS)
"""Accepted media types, in the order in which a 415 lists them."""
BINARY_CLOUDEVENT: Final = "a CloudEvent in binary mode"
"""The form of a body of any media type with a header `ce-specversion`."""

_TEXT: Final = frozenset({JSON, JSON_LINES, CSV, CLOUDEVENT, CLOUDEVENTS})


def form_of(request: Request) -> str:
    """Return the form of a body: one of `TAKEN` or `BINARY_CLOUDEVENT`.

    Raises:
        Problem: 415, the media type is unknown, the body is compressed, or its text is not UTF-8; 422, a header that
            determines the form is repeated.
    """
    headers = request.headers
    for name in _DECIDING:
        if len(headers.getlist(name)) > 1:
            raise invalid([{"parameter": name, "detail": "is given more than once: send it once"}])
    media_type = media_type_of(request)
    if "ce-specversion" in headers:
        return BINARY_CLOUDEVENT
    if media_type not in TAKEN:
        raise unsupported_media_type(media_type, *TAKEN)
    if media_type in _TEXT:
        require_utf8(request, media_type)
    return media_type


_DECIDING: Final = ("content-type", "content-encoding", "ce-specversion")
