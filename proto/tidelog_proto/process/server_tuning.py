"""Settings of a server's process: garbage collection, and when a thread may take the GIL from the event loop.

A worker that has written to the disk needs the GIL to report it. uvloop releases the GIL around each callback and takes
it again at once. A worker that waits is woken each time, finds the GIL taken, and begins a new wait; only a wait that
lasts a whole switch interval forces the event loop's thread to release the GIL. With CPython's interval of 5 ms a busy
event loop never lets a wait last that long, so a write of 1 ms takes 100 to 250 ms until it is acknowledged (ADR 0186).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from tidelog_proto.process.garbage_collection import tune_garbage_collection

SWITCH_INTERVAL_S: Final = 50e-6
"""Time that a thread waits for the GIL before it forces the holder to release it: shorter than a callback of the event
loop, and longer than passing on the GIL takes."""


def tune_server() -> None:
    """Set garbage collection and the switch interval for this process.

    A node or a gateway calls this from its event loop at the end of its start.
    """
    tune_garbage_collection(asyncio.get_running_loop())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
