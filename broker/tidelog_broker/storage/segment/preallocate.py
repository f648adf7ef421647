"""How a segment takes disk space ahead of its appender.

A segment grows in chunks that double from a few kilobytes to 64 MiB, so that a small partition stays small and a
busy one asks rarely. When less than half of the last chunk is left the next one is asked for in the background; an
appender that outruns it takes the space itself.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import KIB, MIB

CHUNK_BYTES_MIN: Final = 16 * KIB
CHUNK_BYTES_MAX: Final = 64 * MIB


def next_chunk_bytes(allocated_bytes: int) -> int:
    """Return how much a file that has this much space takes next: as much again, within bounds."""
    return min(max(allocated_bytes, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)
