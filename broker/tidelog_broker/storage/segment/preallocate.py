"""How a segment takes disk space before its appender writes there.

A segment grows in chunks: by three times what it has while it is small, so that thousands of partitions that are
written by turns ask rarely, then by as much again, up to 64 MiB. A small chunk takes some microseconds, less than
waking a thread does, and the appender takes it itself when it is out of space. Of larger ones the next is asked for in
the background when less than half of the last is left; an appender that outruns it takes the space itself.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import KIB, MIB

CHUNK_BYTES_MIN: Final = 16 * KIB
CHUNK_BYTES_MAX: Final = 64 * MIB
SMALL_CHUNK_BYTES_MAX: Final = 4 * MIB


def next_chunk_bytes(allocated_bytes: int) -> int:
    """Return how much a file that has this much space takes next."""
    chunk = max(min(3 * allocated_bytes, SMALL_CHUNK_BYTES_MAX), allocated_bytes)
    return min(max(chunk, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def ahead_bytes(allocated_bytes: int) -> int:
    """Return with how much left of its space a file of this size asks for the next chunk: 0, when it has run out."""
    chunk = next_chunk_bytes(allocated_bytes)
    return chunk // 2 if chunk > SMALL_CHUNK_BYTES_MAX else 0
