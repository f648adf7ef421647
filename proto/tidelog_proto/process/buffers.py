"""Where large buffers come from: frames being received, bodies being encoded.

A process that moves batches takes and drops megabyte buffers all the time. Arrow's default allocator gives such
memory back to the kernel within milliseconds and faults it in again, zeroed, for the next batch; jemalloc, which
Arrow's wheels carry too, keeps it for about a second. On a 2-core virtual machine a node's work per 416 KB batch
fell from 700 to 300 µs with it. Where a build lacks jemalloc the default serves.

Rejected: making it the process's default pool (a library must not).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa

SMALL_BYTES: Final = 16 * 1024
"""Below this Python's own allocator has memory at hand, at a fifth of the cost of asking Arrow's pool."""


@cache
def batch_pool() -> pa.MemoryPool:
    """Return the memory pool for buffers of a batch's size."""
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()


def allocate(size_bytes: int) -> memoryview:
    """Return `size_bytes` of writable memory: from `SMALL_BYTES` on aligned to 64 bytes."""
    if size_bytes < SMALL_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(pa.allocate_buffer(size_bytes, memory_pool=batch_pool())).cast("B")
