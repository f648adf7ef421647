"""Allocation of large buffers: frames being received, bodies being encoded.

A process that moves batches allocates and frees megabyte buffers continuously. Arrow's default allocator returns such
memory to the kernel within milliseconds, and the next batch faults it in again, zeroed; jemalloc, which Arrow's wheels
contain too, keeps it for about a second, which halves a node's work for a large batch. Builds without jemalloc use the
default. The process's default pool is unchanged: a library must not change it.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Final

import pyarrow as pa

SMALL_BYTES: Final = 16 * 1024
"""Size below which Python's allocator is faster than Arrow's pool."""


@cache
def batch_pool() -> pa.MemoryPool:
    """Return the memory pool for buffers of batches."""
    try:
        return pa.jemalloc_memory_pool()
    except NotImplementedError:
        return pa.default_memory_pool()


allocate_large: Final = partial(pa.allocate_buffer, memory_pool=batch_pool())
"""Returns an Arrow buffer of the given size, which should be at least `SMALL_BYTES`. Implemented in C, because a Python
function would add its call to every buffer."""


def allocate(size_bytes: int) -> memoryview:
    """Return `size_bytes` of writable memory, aligned to 64 bytes from `SMALL_BYTES` on."""
    if size_bytes < SMALL_BYTES:
        return memoryview(bytearray(size_bytes))
    return memoryview(allocate_large(size_bytes)).cast("B")
