"""`Idempotency-Key`: which header values are keys, and by what the log recognises a retry of a request.

A key counts within one topic and one caller. What has to be equal in a retry is the body byte for byte, its media type
and the query; other headers may differ.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from tidelog.keyed_requests import RequestKey, request_key
from tidelog_gateway.bodies import Pace
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import MIB
from tidelog_proto.printable import printable

HEADER: Final = b"idempotency-key"
KEY_CHARS_MAX: Final = 255
_KEY: Final = re.compile(rb"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_SHOWN_CHARS_MAX: Final = 40


def key_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the key of a request; None where it has none.

    Raises:
        Problem: 400, the header is given twice or has no such value.
    """
    given = [value for name, value in headers if name == HEADER]
    if not given:
        return None
    if len(given) > 1:
        raise _no_key(f"the request has {len(given)} of them; send one")
    key = given[0]
    if len(key) > KEY_CHARS_MAX:
        raise _no_key(f"it has at most {KEY_CHARS_MAX} characters, got {len(key)}")
    if _KEY.fullmatch(key) is None:
        shown = printable(key.decode("latin-1"), _SHOWN_CHARS_MAX)
        raise _no_key(f"it consists of printable ASCII characters, got {shown!r}; use a UUID, for instance")
    return key


async def request_key_of(
    key: bytes, *, principal: str | None, topic: str, media_type: str, query: bytes, body: bytes, pace: Pace
) -> RequestKey:
    """Return by what the log recognises a request. Large bodies are hashed in pieces.

    Raises:
        Problem: as `pace`.
    """
    hashed, view = hashlib.sha256(), memoryview(body)
    for at in range(0, len(view), MIB):
        if at:
            await pace()
        hashed.update(view[at : at + MIB])
    caller = b"" if principal is None else b"=" + principal.encode()
    return request_key((caller, topic.encode(), key), (media_type.encode(), query, hashed.digest()))


def reused() -> Problem:
    """Return the 422 for a key that belongs to another request."""
    return Problem(
        422,
        "idempotency_key_reused",
        "this Idempotency-Key was used with another body, media type or query for this topic, and nothing of this "
        "request is stored; send each request under a key of its own, and a retry unchanged",
    )


def unsupported_by_websockets() -> Problem:
    """Return the 400 for a WebSocket that is opened with a key."""
    return Problem(
        400,
        "idempotency_key_unsupported",
        "a WebSocket takes no Idempotency-Key, and what is published over it would be stored as often as it is sent: "
        "leave the header out, or publish by POST /v1/topics/{topic}/records",
    )


def _no_key(why: str) -> Problem:
    return Problem(400, "idempotency_key_invalid", f"Idempotency-Key is not valid: {why}")
