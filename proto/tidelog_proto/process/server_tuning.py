"""Settings of a server's process: garbage collection, and when a thread may take Python's lock from the event loop.

A worker that has written to the disk needs the lock to report it. uvloop releases the lock around each callback and
takes it again at once. A worker that waits is woken each time, finds the lock taken, and begins a new wait; only a wait
that lasts a whole interval forces the other thread to hand the lock over. With CPython's interval of 5 ms a busy event
loop never lets a wait last that long, so a write of 1 ms takes 100 to 250 ms until it is acknowledged (ADR 0186).
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from tidelog_proto.process.garbage_collection import tune_garbage_collection

SWITCH_INTERVAL_S: Final = 50e-6
"""Time after which a thread must hand over the interpreter's lock: shorter than a callback of the event loop, and
longer than the handover."""


def tune_server() -> None:
    """Set garbage collection and the switch interval for this process.

    A node or a gateway calls this from its event loop at the end of its start.
    """
    tune_garbage_collection(asyncio.get_running_loop())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
