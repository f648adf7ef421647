"""Cursors of reads over a whole topic: a resume token, a dot, and the partition with which the next answer begins.

The token holds the position in every partition (`resume_tokens.py`), so a cursor is all the state that a reader has. A
cursor without the part behind the dot is a token of a WebSocket or a stream, and begins with partition 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from tidelog_gateway.http1.head import HEAD_BYTES_MAX
from tidelog_gateway.problems import Problem
from tidelog_gateway.resume_tokens import ResumeTokens, Scope, positions_in
from tidelog_proto.limits import KIB, PARTITIONS_MAX

CURSOR_CHARS_MAX: Final = HEAD_BYTES_MAX - 8 * KIB
"""Of a cursor that fits into the address of a request beside everything else that its head has."""
HEADER_CHARS_MAX: Final = 6_000
"""Of a cursor that is returned in a header: clients and proxies take lines of 8 KiB."""

_CURSOR: Final = re.compile(r"([\w-]+)(?:\.(0|[1-9]\d{0,4}))?", re.ASCII)


class Cursor(NamedTuple):
    """Where a read goes on.

    Attributes:
        positions: partition -> next offset; a partition that it lacks begins at its first record.
        first: the partition with which the answer begins.
    """

    positions: dict[int, int]
    first: int = 0


def cursor_in(text: str, scope: Scope) -> Cursor:
    """Return what a cursor says.

    Raises:
        Problem: 422 `invalid_cursor`; 410 `topic_recreated`.
    """
    found = _CURSOR.fullmatch(text)
    first = int(found[2] or 0) if found else 0
    try:
        positions = positions_in(found[1], scope) if found and first < PARTITIONS_MAX else None
    except Problem as problem:
        if problem.status == 410:
            detail = (
                f"topic {scope.topic!r} was deleted and created again since this cursor was made; begin without a "
                "cursor to read the new topic"
            )
            raise Problem(410, problem.code, detail) from problem
        positions = None
    if positions is None:
        why = "is damaged, or belongs to another topic, key, tag or release of the gateway"
        detail = f"cursor {why}; send it as it was returned, with the same topic, key and tag, or begin without one"
        raise Problem(422, "invalid_cursor", detail, extra={"errors": [{"parameter": "cursor", "detail": why}]})
    return Cursor(positions, first)


def cursor_text(scope: Scope, positions: Mapping[int, int], first: int, *, chars_max: int = CURSOR_CHARS_MAX) -> str:
    """Return a cursor as text.

    Raises:
        Problem: 422 `too_many_partitions`, it would be too long.
    """
    text = f"{ResumeTokens(scope, positions).token()}.{first}"
    if len(text) > chars_max:
        other = "read it as JSON, or " if chars_max < CURSOR_CHARS_MAX else ""
        detail = (
            f"topic {scope.topic!r} has {len(positions)} partitions, and a cursor of {len(text)} characters; at most "
            f"{chars_max} are possible here: {other}read its partitions one by one"
        )
        raise Problem(422, "too_many_partitions", detail)
    return text
