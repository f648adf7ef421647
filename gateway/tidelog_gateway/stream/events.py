"""Server-sent events, as the HTML standard has them.

The data of an event is one JSON object on one line, which has no line breaks whatever the records hold: JSON writes
them as escapes, and bytes that are not UTF-8 come in base64. So the parsing rules of the standard leave it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidelog_gateway.feed.ring import Piece

RETRY_MS: Final = 1000
"""When a browser connects again."""

HEARTBEAT: Final = b":\n\n"
"""A comment, for proxies that end what is silent."""

BEGIN: Final = b"retry: %d\n" % RETRY_MS
"""Of the first bytes of a stream; the event of the beginning follows."""


def event(data: Any, *, token: str | None = None, name: str | None = None) -> bytes:
    """Return an event.

    Args:
        data: becomes JSON.
        token: its id, to resume from; None: the last one holds.
        name: its type; None: that of messages.
    """
    head = b"" if token is None else b"id: %b\n" % token.encode("ascii")
    if name is not None:
        head += b"event: %b\n" % name.encode("ascii")
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


def batch_event(partition: int, records: Any, next_offset: int, token: str | None) -> bytes:
    """Return the event of a batch; `records` is a list or a fragment of JSON."""
    return event({"partition": partition, "records": records, "next_offset": next_offset}, token=token)


@dataclass(frozen=True, slots=True)
class EventForm:
    """A piece of a shared feed as an event, in a chunk of its own (RFC 9112, 7.1)."""

    surface: str = "stream"
    always_token: bool = True

    def encode(self, piece: Piece, token: str | None) -> bytes:
        """Return the chunk."""
        body = batch_event(piece.partition, orjson.Fragment(piece.data), piece.next_offset, token)
        return b"%x\r\n%b\r\n" % (len(body), body)


def event_of(message: Mapping[str, Any]) -> bytes:
    """Return a message of a subscription as an event: `ok` begins the stream, `batch` has records."""
    if "batch" in message:
        batch = message["batch"]
        return batch_event(batch["partition"], batch["records"], batch["next_offset"], batch.get("resume_token"))
    opened = message["ok"]
    return BEGIN + event({"offsets": opened["offsets"]}, token=opened["resume_token"], name="begin")


def end_event(error: Mapping[str, Any]) -> bytes:
    """Return the event that says why a stream ends."""
    return event({"error": error}, name="end")
