"""The clock of group sessions, which continues while the machine is suspended.

On Linux `time.monotonic` stops during suspension, so a member whose machine was suspended for longer than its session
would not notice that the session has expired. Without a suspend-aware clock, the monotonic clock is used, and the
coordinator's generation check refuses the stale member's commits.
"""

from __future__ import annotations

import time

if hasattr(time, "CLOCK_BOOTTIME"):

    def session_time() -> float:
        """Return seconds since boot, including time in suspension."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # Python has no suspend-aware clock on macOS.
    session_time = time.monotonic
