"""Memory for received frames that is used again while the processor's caches still hold it.

An allocator hands large buffers out in turns: what a process receives next lies where nothing has lain for some hundred
megabytes of traffic, so every frame comes from memory and pushes code and data of all processes out of the caches. Here
the block that was handed out last and that nobody looks at any more is handed out first. A process that is done with a
frame before the next one comes, as a replica is, receives all of them in the same few megabytes.

Nobody has to say that he is done: a block is free when nothing but this list refers to it. A view of it, a slice of a
view, an Arrow buffer over one, or a socket that still sends one, each is such a reference, wherever it is.
"""

from __future__ import annotations

import threading
from sys import getrefcount
from typing import Final

import pyarrow as pa

from tidelog_proto.limits import KIB, MIB
from tidelog_proto.memory import allocate, batch_pool

REUSED_BYTES_MIN: Final = 256 * KIB
"""What is smaller leaves the caches as they are."""
REUSED_BYTES_MAX: Final = 8 * MIB
"""What is larger would crowd out the rest, and fits no cache anyway."""
BLOCKS_MAX: Final = 32
BLOCKS_BYTES_MAX: Final = 32 * MIB
"""What is remembered at most, free or not: as much as this stays taken when nothing is received any more."""

_ROUNDED_BYTES: Final = 64 * KIB


class ReusedBlocks:
    """The blocks of one thread, the one handed out last at the end. Not to be shared between threads."""

    def __init__(self) -> None:
        self._blocks = [pa.allocate_buffer(1)]
        # Asked in the way in which it will be asked: how many references the asking itself takes is Python's affair.
        self._unheld = self._holders(0)
        self._blocks.clear()
        self.size_bytes = 0
        """What is remembered."""

    def take(self, size_bytes: int) -> memoryview:
        """Return `size_bytes` of writable memory aligned to 64 bytes, part of a block at most a quarter longer."""
        if not REUSED_BYTES_MIN <= size_bytes <= REUSED_BYTES_MAX:
            return allocate(size_bytes)
        blocks, bytes_max = self._blocks, size_bytes + size_bytes // 4
        for at in range(len(blocks) - 1, -1, -1):
            if size_bytes <= blocks[at].size <= bytes_max and self._holders(at) == self._unheld:
                block = blocks.pop(at)
                break
        else:
            rounded_bytes = -(-size_bytes // _ROUNDED_BYTES) * _ROUNDED_BYTES
            block = pa.allocate_buffer(rounded_bytes, memory_pool=batch_pool())
            self.size_bytes += rounded_bytes
        blocks.append(block)
        while len(blocks) > BLOCKS_MAX or self.size_bytes > BLOCKS_BYTES_MAX:
            self.size_bytes -= blocks.pop(0).size
        return memoryview(block).cast("B")[:size_bytes]

    def _holders(self, at: int) -> int:
        return getrefcount(self._blocks[at])


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.blocks = ReusedBlocks()


_of_thread: Final = _OfThread()


def take(size_bytes: int) -> memoryview:
    """Return `size_bytes` of writable memory from this thread's blocks; see `ReusedBlocks.take`."""
    return _of_thread.blocks.take(size_bytes)
