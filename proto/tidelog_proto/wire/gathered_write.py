"""Vectored writes of several buffers to an asyncio transport, with the same behaviour on every event loop.

Since Python 3.12 asyncio's `writelines` sends buffers without joining them, with three bugs in releases that are in use
(all of them in 3.13.0):

- A trailing empty buffer is never removed: the loop spins, and closing never completes.
- It does not pause the protocol when the write buffer is full.
- On a closing transport it raises, or watches a descriptor whose number the next connection may get.

So empty buffers are skipped, a closing transport gets nothing, and a transport whose write buffer exceeds its limit is
made to check the limit again. Rejected: joining the buffers, which copies every batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

JOIN_BYTES_MAX: Final = 16 * 1024
"""Size up to which the parts of a frame are joined, because a transport handles one buffer faster than several."""


def write_parts(transport: asyncio.Transport, parts: Iterable[Any]) -> None:
    """Send several buffers in order; do nothing if the transport is closing or closed.

    Args:
        transport: of asyncio or uvloop; its protocol is paused and resumed as with `write`.
        parts: bytes-like objects whose length is in bytes; they must not change before they are sent.
    """
    if transport.is_closing():
        return
    transport.writelines(list(filter(len, parts)))
    unsent_bytes = transport.get_write_buffer_size()
    if unsent_bytes:
        low_bytes, high_bytes = transport.get_write_buffer_limits()
        if unsent_bytes > high_bytes:
            # Setting the limits is the only public way to make a transport check them. A paused protocol is not paused
            # again.
            transport.set_write_buffer_limits(high=high_bytes, low=low_bytes)
