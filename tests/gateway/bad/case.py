"""A bad request and its expected answer."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

HOST: Final = b"Host: 127.0.0.1\r\n"
TOPIC: Final = "bad"
"""A topic of two partitions; COMPACTED has one, and stores records with keys alone."""
COMPACTED: Final = "bad-compacted"


class Case(NamedTuple):
    """A request.

    Attributes:
        data: its bytes.
        status: of the answer; below 400 for unusual but valid requests.
        says: parts of the answer's body, such as the wrong value or the remedy.
        operation: method and path in the API's description, which lists the status; None for a request whose head is
            refused or names no operation.
        code: of the problem.
    """

    data: bytes
    status: int
    says: tuple[str, ...] = ()
    operation: tuple[str, str] | None = None
    code: str | None = None


def head(line: str | bytes, *fields: str | bytes) -> bytes:
    """Return a head with a Host."""
    lines = [line if isinstance(line, bytes) else line.encode("latin-1") for line in (line, *fields)]
    return lines[0] + b" HTTP/1.1\r\n" + HOST + b"".join(field + b"\r\n" for field in lines[1:]) + b"\r\n"


def with_body(line: str, body: bytes, *fields: str, media_type: str | None = "application/json") -> bytes:
    """Return a request with a body and its length."""
    given = [f"Content-Length: {len(body)}", *fields]
    if media_type is not None:
        given.append(f"Content-Type: {media_type}")
    return head(line, *given) + body


def as_json(value: Any) -> bytes:
    """Return JSON in one line."""
    return json.dumps(value, separators=(",", ":")).encode()
