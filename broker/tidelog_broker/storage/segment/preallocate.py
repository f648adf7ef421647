"""The sizes in which a segment allocates disk space ahead of its appender.

A segment grows in chunks: by three times its size while it is small, so that thousands of rarely written partitions
allocate rarely, then by its size, up to 64 MiB. A small chunk takes microseconds, less than waking a thread, so the
appender allocates it itself when space runs out. A larger chunk is allocated in the background when less than half of
the last one is left; an appender that is faster allocates it itself.
"""

from __future__ import annotations

from typing import Final

from tidelog_proto.limits import KIB, MIB

CHUNK_BYTES_MIN: Final = 16 * KIB
CHUNK_BYTES_MAX: Final = 64 * MIB
SMALL_CHUNK_BYTES_MAX: Final = 4 * MIB


def next_chunk_bytes(allocated_bytes: int) -> int:
    """Return the size of the next chunk of a file with this much allocated space."""
    chunk = max(min(3 * allocated_bytes, SMALL_CHUNK_BYTES_MAX), allocated_bytes)
    return min(max(chunk, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def ahead_bytes(allocated_bytes: int) -> int:
    """Return the remaining space at which the next chunk is requested; 0 to request it only when no space is left."""
    chunk = next_chunk_bytes(allocated_bytes)
    return chunk // 2 if chunk > SMALL_CHUNK_BYTES_MAX else 0
