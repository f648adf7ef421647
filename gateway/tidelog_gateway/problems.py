"""Problem documents (RFC 9457), the format of every error that the gateway returns.

Members: `type`, `title`, `status`, `detail`, and as extensions `code` (the protocol's name of the error, lower case),
`retryable`, `request_id`; some have more: `errors` (faults with their JSON pointers), `log_start_offset` and
`high_watermark` (an offset out of range), `limit_bytes` (a body that is too large), `offered` (media types of a 406).
`Retry-After` is sent with every 429 and 503.

The status tells a client whether to retry: 503 means *not accepted*, so the same request may be sent again; 504 means
*outcome unknown*, so only an idempotent request, or a publish that may be stored twice, should be sent again.

A 429 that a node caused is converted here (`_STATUS`). The gateway's own limits raise it in `flow.body_limits`,
`bodies.arrow_body`, `publishing.line_stream` and `websocket.connection` (request budget), `callers.caller_cache`
(authentications), `sse.route` and `reading.topic_route` (open streams), and `protocol.ws_protocol` (subscriptions).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import orjson
from pydantic import ValidationError
from starlette.responses import Response

from tidelog.errors import ClosedError, OffsetOutOfRangeError, SerializationError, TidelogError
from tidelog_gateway.browser_headers import BROWSER_HEADERS
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError, code_name
from tidelog_proto.printable import printable

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:tidelog:problem:"
RETRY_AFTER_S_DEFAULT: Final = 1

_STATUS: Final[dict[int, int]] = {
    pb.INVALID_REQUEST: 422,
    pb.UNAUTHENTICATED: 401,
    pb.CREDENTIALS_EXPIRED: 401,
    pb.FORBIDDEN: 403,
    pb.BATCH_TOO_LARGE: 413,
    pb.UNSUPPORTED_BATCH: 422,
    pb.SCHEMA_MISMATCH: 409,
    pb.FRAME_TOO_LARGE: 413,
    pb.UNKNOWN_TOPIC: 404,
    pb.TOPIC_EXISTS: 409,
    pb.INVALID_TOPIC: 422,
    pb.UNKNOWN_PARTITION: 404,
    pb.OFFSET_OUT_OF_RANGE: 410,
    pb.UNKNOWN_SUBSCRIPTION: 404,
    pb.UNKNOWN_SCHEMA: 404,
    pb.MEMBER_FENCED: 409,
    pb.GROUP_NOT_EMPTY: 409,
    pb.UNKNOWN_GROUP: 404,
    pb.PRODUCER_FENCED: 409,
    pb.PRODUCER_ID_SHARED: 409,
    pb.OVERLOADED: 429,
    pb.QUOTA_EXCEEDED: 429,
}
"""Statuses by code. For other codes: 503 if retriable, 504 if the outcome is unknown, else 500."""

TITLES: Final[dict[int, str]] = {
    400: "The request is malformed",
    401: "Authentication is needed",
    403: "This is not allowed",
    404: "Not found",
    405: "The method is not allowed here",
    406: "The requested media type is not offered",
    408: "The request took too long to arrive",
    409: "Conflict with the current state",
    410: "The offset has been deleted",
    413: "The request is too large",
    415: "The media type is not supported",
    421: "The host is not a name of this gateway",
    422: "The request is invalid",
    426: "The request must be a WebSocket handshake",
    429: "Too many requests",
    499: "The client has disconnected",
    500: "The gateway failed",
    503: "The log cannot accept this now",
    504: "The outcome is unknown",
}


class Problem(Exception):  # noqa: N818  "problem" is RFC 9457's own word
    """An error that is answered with a problem document.

    Attributes:
        status: the HTTP status, a key of `TITLES`.
        code: name of the error for programs, in lower case with underscores.
        detail: the fault and the remedy, for people.
        retryable: whether the same request may succeed later.
        retry_after_s: value of the header `Retry-After`; set for every 429 and 503.
        extra: further members of the document.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        retryable: bool = False,
        retry_after_s: int | None = None,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.detail = printable(detail)  # The detail may quote text of an unauthenticated client.
        super().__init__(self.detail)
        self.status = status
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        if status in {429, 503} and retry_after_s is None:
            self.retry_after_s = RETRY_AFTER_S_DEFAULT
        self.extra = dict(extra or {})
        self.headers = dict(headers or {})

    def without_frames(self) -> Self:
        """Return the problem without its traceback and cause, to be kept as a value.

        The frames of a traceback hold the body that they parsed, and a frame that keeps the problem would be a
        reference cycle: the body would stay in memory until the garbage collector runs.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    def document(self, request_id: str) -> dict[str, Any]:
        """Return the problem document as plain values."""
        return {
            "type": TYPE_PREFIX + self.code,
            "title": TITLES.get(self.status, "The request failed"),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retryable,
            "request_id": request_id,
            **self.extra,
        }

    def brief(self) -> dict[str, Any]:
        """Return the error as a member of a larger answer: the result of one record, or a WebSocket message."""
        return {
            "code": self.code,
            "status": self.status,
            "detail": self.detail,
            "retryable": self.retryable,
            **self.extra,
        }

    def response(self, request_id: str) -> Response:
        """Return the HTTP response."""
        headers = BROWSER_HEADERS | self.headers
        if self.retry_after_s is not None and self.status in {429, 503}:
            headers["Retry-After"] = str(self.retry_after_s)
        return Response(orjson.dumps(self.document(request_id)), self.status, headers=headers, media_type=MEDIA_TYPE)


def from_error(error: TidelogError | ProtocolError) -> Problem:
    """Return the problem for an error of a node or of the client."""
    code = int(error.code)
    if isinstance(error, ClosedError):
        return Problem(503, "shutting_down", "this gateway is stopping; send the request again", retryable=True)
    if isinstance(error, SerializationError):  # The topic is typed, and a record of the request is not a row of it.
        return Problem(422, "invalid_request", str(error))
    status = _STATUS.get(code)
    if status is None:
        status = 504 if not error.definite else 503 if error.retriable else 500
    extra: dict[str, Any] = {}
    if isinstance(error, OffsetOutOfRangeError):
        extra = {"log_start_offset": error.log_start_offset, "high_watermark": error.high_watermark}
    return Problem(
        status,
        _code_of(error),
        error.message if isinstance(error, ProtocolError) else str(error),
        retryable=error.retriable,
        retry_after_s=math.ceil(error.retry_after_ms / 1000) if error.retry_after_ms else None,
        extra=extra,
    )


def internal() -> Problem:
    """Return the 500 for a bug of the gateway."""
    return Problem(
        500, "internal", "the gateway failed on this request; find the cause by the request_id in the gateway's log"
    )


def _code_of(error: TidelogError | ProtocolError) -> str:
    """Return the name of a code; errors of the client without a code are named by their class: `node_unreachable`."""
    if error.code:
        return code_name(error.code).lower()
    words = re.findall("[A-Z][a-z]*", type(error).__name__.removesuffix("Error"))
    return "_".join(words).lower() or "unknown"


def invalid(errors: Sequence[Mapping[str, str]], detail: str | None = None) -> Problem:
    """Return the 422 for an invalid request; each error names the invalid value by `pointer` or `parameter`."""
    shown = [{name: printable(text) for name, text in error.items()} for error in errors[:ERRORS_SHOWN_MAX]]
    first = shown[0] if shown else {}
    where = first.get("pointer") or first.get("parameter") or ""
    text = detail or f"{where}: {first.get('detail', 'not valid')}".removeprefix(": ")
    if len(errors) > 1 and detail is None:
        text += f" (and {len(errors) - 1} more)"
    return Problem(422, "invalid_request", text, extra={"errors": shown})


ERRORS_SHOWN_MAX: Final = 100
"""Maximum number of faults that a problem lists: ten thousand faults would take a megabyte."""


def pointer(path: Sequence[str | int]) -> str:
    """Return a JSON pointer (RFC 6901) to a value in the request's body."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


ERRORS_LISTED_MAX: Final = 1_000
"""If a body has more faults than this, none is listed: listing one costs 30 us, and the validator lists all or none."""


def body_faults(error: ValidationError, *, prefix: Sequence[str | int] = ()) -> list[dict[str, str]]:
    """Return pydantic's faults of a JSON body, like `validation_errors`; one fault if there are too many to list."""
    count = error.error_count()
    if count > ERRORS_LISTED_MAX:
        detail = (
            f"one body, record or message has {count} faults, and they are listed only up to {ERRORS_LISTED_MAX}; "
            "check its format"
        )
        return [{"pointer": pointer(prefix), "detail": detail}]
    faults = error.errors(include_url=False, include_context=False)
    return validation_errors(faults, prefix=prefix)


def validation_errors(errors: Sequence[Mapping[str, Any]], *, prefix: Sequence[str | int] = ()) -> list[dict[str, str]]:
    """Convert pydantic's errors into `{"pointer"|"parameter", "detail"}`; a detail quotes a scalar value."""
    faults: list[dict[str, str]] = []
    for error in errors:
        # For a fault in JSON text the framework adds the position as if it were a member.
        location = [*prefix, *(("body",) if error["type"] == "json_invalid" else error["loc"])]
        source = location[0] if location else "body"
        if source in {"query", "path", "header", "cookie"}:
            faults.append({"parameter": ".".join(map(str, location[1:])), "detail": _detail_of(error)})
        else:
            path = location[1:] if source == "body" else location
            detail = _detail_of(error)
            # Without a pointer the detail needs a subject of its own.
            faults.append({"pointer": pointer(path), "detail": detail if path else _of_body(error["type"], detail)})
    return faults


VALUE_CHARS_MAX: Final = 60
"""Maximum length of a value that a message quotes."""
_SECRETS: Final = frozenset({"token", "password"})
"""Members of the WebSocket message `auth` whose values are never quoted."""
_REMEDIES: Final = {"missing": "is missing; add it", "extra_forbidden": "is unknown; leave it out"}


def _of_body(kind: str, detail: str) -> str:
    return f"the body {detail}" if kind in _REMEDIES else detail


def _detail_of(error: Mapping[str, Any]) -> str:
    """Return the detail of one of pydantic's errors, with the value."""
    kind, text = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind in _REMEDIES:
        return _REMEDIES[kind]
    if kind == "json_invalid":
        return f"the text is not JSON: {error.get('ctx', {}).get('error', text)}".replace("Invalid JSON: ", "")
    value = error.get("input")
    if _SECRETS & set(error["loc"]):
        return text
    return f"{text}, got {shown(value)}" if value is None or isinstance(value, str | int | float) else text


def shown(value: object) -> str:
    """Return a value of a request as JSON for a message: printable, and truncated to `VALUE_CHARS_MAX`."""
    if isinstance(value, int) and abs(value) > _LARGE:
        return "a number of more than 40 digits"
    part = value[: VALUE_CHARS_MAX + 1] if isinstance(value, str) else value
    return printable(json.dumps(part, ensure_ascii=False), VALUE_CHARS_MAX)


_LARGE: Final = 10**40
"""Larger integers are not quoted, because converting them to text takes quadratic time."""
