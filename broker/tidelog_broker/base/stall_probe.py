"""Whether a call has waited for something, such as a disk, or has only lost the processor to somebody else.

Both take their time on a clock. The system counts them apart: who waits gives the processor away, who is preempted does
not.
"""

from __future__ import annotations

import resource
import time
from typing import Final

_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)


def sleeps() -> int:
    """Return a number that is another one when this thread has waited since the last call.

    Where the system does not count for single threads it is always another one.
    """
    return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else time.perf_counter_ns()
