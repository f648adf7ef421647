"""The clock that sessions are counted by: it goes on while the machine sleeps.

A member whose machine was suspended for longer than its session is one no longer, whatever `time.monotonic` says: on
Linux that clock stands still meanwhile. Where there is no clock that goes on, the monotonic one is all there is, and
the coordinator's generation refuses the commits of who slept.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def session_time() -> float:
        """Return seconds since the machine was started, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock is the one that goes on
    session_time = time.monotonic
