"""Several buffers handed to a transport in one go, alike on every event loop and release of Python.

asyncio's own `writelines` sends the buffers as they lie since Python 3.12, and gets three things wrong in releases that
are in use (all of them in 3.13.0):

- A buffer of no bytes behind the others is never done with: the loop spins on it, and a close never ends.
- It does not tell the protocol to pause when the transport's buffer is full, nor then to resume.
- On a transport that is closing it raises, or watches a descriptor whose number the next connection may get.

So empty buffers are left out, a closing transport gets nothing, and a transport whose buffer is over its limit is made
to look at the limit again. Rejected: joining the buffers, which copies every batch once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

JOIN_BYTES_MAX: Final = 16 * 1024
"""Up to here the parts of a frame are copied together: one buffer costs a transport less than many."""


def write_parts(transport: asyncio.Transport, parts: Iterable[Any]) -> None:
    """Send several buffers behind each other; nothing at all when the transport is closing or gone.

    Args:
        transport: of asyncio or uvloop; its protocol is told to pause and to resume, as with `write`.
        parts: anything with the buffer protocol whose length is in bytes; not to be changed before they are sent.
    """
    if transport.is_closing():
        return
    transport.writelines([part for part in parts if len(part)])
    unsent_bytes = transport.get_write_buffer_size()
    if unsent_bytes:
        low_bytes, high_bytes = transport.get_write_buffer_limits()
        if unsent_bytes > high_bytes:
            # Setting limits is the one public way to make a transport compare. One that has told does not tell again.
            transport.set_write_buffer_limits(high=high_bytes, low=low_bytes)
