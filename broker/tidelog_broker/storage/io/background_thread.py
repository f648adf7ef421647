"""The priority of threads whose work may wait, such as compaction passes.

A niceness decides the share of processor time that a thread gets while threads compete. It does not decide how soon a
thread that wakes up gets a processor: Linux lets the running thread finish its time slice (3 ms), unless the one that
wakes has a shorter slice. So a background thread also gets the longest slice that Linux allows; from Linux 6.12 on,
every other thread then takes the processor from it when it wakes up. Older kernels ignore the slice.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading
from typing import Final

SLICE_NS: Final = 100_000_000
"""The longest time slice that Linux allows."""

_SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call by machine; glibc before 2.41 has no function for it."""

_ATTRIBUTES: Final = struct.Struct("IIQiIQQQ")
"""`struct sched_attr`: size, policy (0: the normal one), flags, niceness, priority, slice in ns (`sched_runtime`), and
two fields of deadline scheduling."""


def lower_priority(niceness: int) -> None:
    """Make the calling thread a background thread; do nothing on other systems than Linux and where it is forbidden.

    Args:
        niceness: added to the nice value of the thread.
    """
    if sys.platform != "linux":  # Elsewhere the number of a thread could be that of another process.
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):
        nice = min(os.getpriority(os.PRIO_PROCESS, thread) + niceness, 19)
        os.setpriority(os.PRIO_PROCESS, thread, nice)
        number = _SCHED_SETATTR.get(platform.machine())
        if number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
            attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, SLICE_NS, 0, 0)
            ctypes.CDLL(None).syscall(number, 0, attributes, 0)
