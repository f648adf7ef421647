"""Security headers for browsers and caches, in every answer.

They prevent guessing of the media type (`nosniff`), scripts, framing (`frame-ancestors`), and caching (`no-store`),
because answers hold records and depend on the caller. An answer that allows more, such as the documentation page, has
its own headers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

BROWSER_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

RAW_BROWSER_HEADERS: Final = tuple((name.lower().encode(), value.encode()) for name, value in BROWSER_HEADERS.items())


def with_browser_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer, with those of `BROWSER_HEADERS` that it does not have."""
    fields = list(headers)
    own = {name.lower() for name, _ in fields}
    return [*fields, *(header for header in RAW_BROWSER_HEADERS if header[0] not in own)]
