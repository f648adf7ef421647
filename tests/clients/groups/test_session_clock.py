from __future__ import annotations

import time

from tidelog.groups.session_clock import session_time


def test_session_time_counts_from_boot() -> None:
    before, told, after = (
        time.clock_gettime(time.CLOCK_BOOTTIME),
        session_time(),
        time.clock_gettime(time.CLOCK_BOOTTIME),
    )
    assert before <= told <= after
