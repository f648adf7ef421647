"""Cursors of reads over a whole topic: a resume token, a dot, and the first partition of the next response.

The token has the position in every partition (`resume_tokens.py`), so a cursor is the complete state of a reader. A
resume token of a WebSocket or a stream is also accepted as a cursor; the read then begins with partition 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog_gateway.http1.head import HEAD_BYTES_MAX
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.resume_tokens import ResumeTokens, Scope, positions_in
from tidelog_proto.limits import KIB, PARTITIONS_MAX

CURSOR_CHARS_MAX: Final = HEAD_BYTES_MAX - 24 * KIB
"""Limit of a cursor in a request's URL: leaves 24 KiB of the head for `columns` and the other fields."""
HEADER_CHARS_MAX: Final = 6_000
"""Limit of a cursor in a response header: clients and proxies accept lines of 8 KiB."""

_CURSOR: Final = re.compile(r"([\w-]+)(?:\.(0|[1-9]\d{0,4}))?", re.ASCII)


class Cursor(NamedTuple):
    """Position of a read over a topic.

    Attributes:
        positions: partition -> next offset; a missing partition begins at its log start offset.
        first: the first partition of the response.
    """

    positions: dict[int, int]
    first: int = 0


def cursor_in(text: str, scope: Scope) -> Cursor:
    """Parse a cursor.

    Raises:
        Problem: 422 `invalid_cursor`; 410 `topic_recreated`.
    """
    match = _CURSOR.fullmatch(text)
    first = int(match[2] or 0) if match else 0
    try:
        positions = positions_in(match[1], scope) if match and first < PARTITIONS_MAX else None
    except Problem as problem:
        if problem.status == 410:
            detail = (
                f"topic {scope.topic!r} was deleted and created again since this cursor was made; begin without a "
                "cursor to read the new topic"
            )
            raise Problem(410, problem.code, detail) from problem
        positions = None
    if positions is None:
        why = "is malformed, or belongs to another topic, key, tag or release of the gateway"
        detail = f"cursor {why}; send it as it was returned, with the same topic, key and tag, or begin without one"
        raise Problem(422, "invalid_cursor", detail, extra={"errors": [{"parameter": "cursor", "detail": why}]})
    return Cursor(positions, first)


def cursor_text(scope: Scope, positions: Mapping[int, int], first: int, *, chars_max: int = CURSOR_CHARS_MAX) -> str:
    """Return a cursor as text.

    Raises:
        Problem: 422 `too_many_partitions`, the cursor is longer than `chars_max`.
    """
    text = f"{ResumeTokens(scope, positions).token()}.{first}"
    if len(text) > chars_max:
        other = "request application/json, or " if chars_max < CURSOR_CHARS_MAX else ""
        detail = (
            f"topic {scope.topic!r} has {len(positions)} partitions, so its cursor has {len(text)} characters, but at "
            f"most {chars_max} are allowed here: {other}read its partitions one by one"
        )
        raise Problem(422, "too_many_partitions", detail)
    return text
