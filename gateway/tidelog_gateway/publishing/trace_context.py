"""W3C trace context of a request (`traceparent`, `tracestate`), which becomes headers of the published records.

A record with its own `traceparent` keeps it, and gets no `tracestate` either. As the W3C recommends, an invalid
`traceparent` is ignored, and so is a `tracestate` without a valid `traceparent`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from tidelog_gateway.records.json_decoding import Records

HEADER: Final = b"traceparent"
STATE_HEADER: Final = b"tracestate"
STATE_CHARS_MAX: Final = 512
_PARENT: Final = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]*)?"
)
_PARENT_CHARS_MAX: Final = 128
_STATE: Final = re.compile(rb"[\x20-\x7e]+")

TraceHeaders = list[tuple[str, bytes | None]]


def trace_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceHeaders | None:
    """Return the trace context of a request as record headers; None without a valid one."""
    headers = list(headers)
    parents = [value.strip() for name, value in headers if name == HEADER]
    if len(parents) != 1 or len(parents[0]) > _PARENT_CHARS_MAX:
        return None
    match = _PARENT.fullmatch(parents[0])
    if match is None or (match[1] is not None and parents[0].startswith(b"00")):
        return None
    context: TraceHeaders = [(HEADER.decode(), parents[0])]
    state = b",".join(value.strip() for name, value in headers if name == STATE_HEADER)
    if len(state) <= STATE_CHARS_MAX and _STATE.fullmatch(state):
        context.append((STATE_HEADER.decode(), state))
    return context


def add_trace(records: Records, context: TraceHeaders | None) -> None:
    """Add the context to the records without a `traceparent`."""
    if context is None:
        return
    if records.headers is None:
        records.headers = [context] * len(records)
        return
    records.headers = [
        headers if any(name.lower() == "traceparent" for name, _ in headers) else [*headers, *context]
        for headers in records.headers
    ]
