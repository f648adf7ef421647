"""Encoding of server-sent events (HTML standard, section 9.2).

The data of an event is one JSON object on one line. It contains no line break: JSON escapes line breaks, and bytes that
are not UTF-8 are encoded as base64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidelog_gateway.feed.ring import RingEntry

RETRY_MS: Final = 1000
"""Delay before a browser reconnects."""

HEARTBEAT: Final = b":\n\n"
"""A comment, which keeps proxies from closing an idle connection."""

BEGIN: Final = b"retry: %d\n" % RETRY_MS
"""The first bytes of a stream; the event `begin` follows."""


def event(data: Any, *, token: str | None = None, name: str | None = None) -> bytes:
    """Return an event.

    Args:
        data: encoded as JSON.
        token: the event's id, a resume token; None: the previous id remains valid.
        name: the event's type; None: the default type, `message`.
    """
    head = b"" if token is None else b"id: %b\n" % token.encode("ascii")
    if name is not None:
        head += b"event: %b\n" % name.encode("ascii")
    return b"%bdata: %b\n\n" % (head, orjson.dumps(data))


def batch_event(partition: int, records: Any, next_offset: int, token: str | None) -> bytes:
    """Return the event of a batch; `records` is a list or an `orjson.Fragment`."""
    return event({"partition": partition, "records": records, "next_offset": next_offset}, token=token)


@dataclass(frozen=True, slots=True)
class EventEncoder:
    """Encodes a message of a shared feed as an event in a chunk of its own (RFC 9112, 7.1)."""

    surface: str = "stream"
    always_token: bool = True

    def encode(self, entry: RingEntry, token: str | None) -> bytes:
        """Return the chunk with the event of an entry, whose id is the token."""
        body = batch_event(entry.partition, orjson.Fragment(entry.data), entry.next_offset, token)
        return b"%x\r\n%b\r\n" % (len(body), body)


def event_of(message: Mapping[str, Any]) -> bytes:
    """Return the event for a message of a subscription: `ok` begins the stream, `batch` has records."""
    if "batch" in message:
        batch = message["batch"]
        return batch_event(batch["partition"], batch["records"], batch["next_offset"], batch.get("resume_token"))
    opened = message["ok"]
    return BEGIN + event({"offsets": opened["offsets"]}, token=opened["resume_token"], name="begin")


def end_event(error: Mapping[str, Any]) -> bytes:
    """Return the event with the cause of a stream's end."""
    return event({"error": error}, name="end")
