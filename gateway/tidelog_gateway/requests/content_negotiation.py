"""Media types of responses, and their selection by an Accept header (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
CSV: Final = "text/csv"
ARROW: Final = "application/vnd.apache.arrow.stream"

RECORD_TYPES: Final = (JSON, NDJSON, CSV, ARROW)
"""Media types of responses with records, in order of preference."""

_QUALITY: Final = re.compile(r"q=(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)", re.ASCII)
RANGES_MAX: Final = 100
"""Maximum number of media ranges of an Accept header that are evaluated; further ones are ignored."""


def preferred(accept: str, offered: Sequence[str]) -> str | None:
    """Return the media type with the highest quality, of equal ones the first; None if no type is acceptable.

    Args:
        accept: the header's value. The most specific range that matches a type applies; a malformed weight counts as
            1, and parameters of media types are ignored.
        offered: media types in lower case.
    """
    ranges = [_range(part) for part in accept.split(",")[:RANGES_MAX]]
    qualities = [_quality(ranges, media_type) for media_type in offered]
    best = max(qualities, default=0.0)
    return offered[qualities.index(best)] if best > 0 else None


def takes(accept: str, media_type: str = JSON) -> bool:
    """Return whether an Accept header accepts a media type."""
    return preferred(accept, (media_type,)) is not None


def _range(part: str) -> tuple[str, float]:
    name, *parameters = (word.strip().lower() for word in part.split(";"))
    for parameter in parameters:
        if parameter.partition("=")[0].strip() == "q":
            match = _QUALITY.fullmatch(parameter.replace(" ", ""))
            return name, float(match[1]) if match else 1.0
    return name, 1.0


def _quality(ranges: Sequence[tuple[str, float]], media_type: str) -> float:
    kind = media_type.partition("/")[0]
    for media_range in (media_type, f"{kind}/*", "*/*"):
        qualities = [quality for name, quality in ranges if name == media_range]
        if qualities:
            return max(qualities)
    return 0.0
