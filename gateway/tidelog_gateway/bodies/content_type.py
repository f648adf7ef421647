"""The media type of a request body: checks of `Content-Type`, and the format of the body of a publish."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.types import Scope

from tidelog_gateway.problems import Problem, invalid
from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON
from tidelog_gateway.requests.content_negotiation import NDJSON as JSON_LINES

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
    "format_of",
    "media_type_of",
    "require_json",
    "unsupported_media_type",
]

RAW: Final = "application/octet-stream"
PROTOBUF: Final = "application/x-protobuf"
PROTOBUF_REGISTERED: Final = "application/protobuf"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"

TAKEN: Final = (JSON, RAW, JSON_LINES, CSV, ARROW, PROTOBUF, PROTOBUF_REGISTERED, CLOUDEVENT, CLOUDEVENTS)
"""Accepted media types, in the order in which a 415 lists them."""
BINARY_CLOUDEVENT: Final = "a CloudEvent in binary mode"
"""The format of a request with the header `ce-specversion`, whatever its media type is."""

_TEXT: Final = frozenset({JSON, JSON_LINES, CSV, CLOUDEVENT, CLOUDEVENTS})


def media_type_of(request: Request) -> str:
    """Return the body's media type in lower case, without parameters; "" when it is missing.

    Raises:
        Problem: 415, the body is compressed: no limit counts the memory for decoding it, and if it were stored
            compressed, the record would have another value than the client sent.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Problem(
            415,
            "unsupported_content_encoding",
            f"Content-Encoding {encoding!r} is not supported; send the body without compression",
            headers={"Accept-Encoding": "identity"},
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: Request) -> None:
    """Refuse bodies whose media type is not JSON.

    Raises:
        Problem: 415.
    """
    if media_type_of(request) != "application/json":
        raise unsupported_media_type(media_type_of(request), "application/json")
    require_utf8(request)


def require_utf8(request: Request, media_type: str = "application/json") -> None:
    """Refuse a charset other than UTF-8, the only encoding of JSON (RFC 8259, 8.1).

    Raises:
        Problem: 415.
    """
    for parameter in request.headers.get("content-type", "").split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in {"utf-8", "utf8", "us-ascii"}:
            raise unsupported_media_type(f"{media_type} in {value.strip()}", media_type)


URL_ENCODED_FORM: Final = "application/x-www-form-urlencoded"
"""The media type that `curl -d` sends by default."""


def unsupported_media_type(given: str, *accepted: str) -> Problem:
    """Return the 415 with the accepted media types."""
    listed = " or ".join(filter(None, (", ".join(accepted[:-1]), accepted[-1])))
    remedy = f"set the header Content-Type to {listed}"
    if given == URL_ENCODED_FORM:
        remedy += f", as in curl -H 'Content-Type: {accepted[0]}'"
    return Problem(
        415,
        "unsupported_media_type",
        f"{given or 'a body without Content-Type'} is not supported here; {remedy}",
        headers={"Accept-Post": ", ".join(accepted)},
    )


def format_of(scope: Scope) -> str:
    """Return the format of a request's body: one of `TAKEN` or `BINARY_CLOUDEVENT`.

    Media types in their usual spelling are found without the framework's headers, which decode every field.

    Raises:
        Problem: 415, the media type is unknown, the body is compressed, or its charset is not UTF-8; 422, a header that
            determines the format is repeated.
    """
    deciding = [field for field in scope["headers"] if field[0] in _DECIDING_FIELDS]
    if len(deciding) == 1 and (body_format := _USUAL.get(deciding[0])) is not None:
        return body_format
    request = Request(scope)
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
_DECIDING_FIELDS: Final = frozenset(name.encode() for name in _DECIDING)
_USUAL: Final = {(b"content-type", media_type.encode()): media_type for media_type in TAKEN}
