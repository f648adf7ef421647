"""How long to wait before the next try: exponential, with jitter, and never shorter than the node asks for.

Full jitter over the upper half (a wait between half the step and the step): clients that failed together do not
come back together, and a wait never collapses to nothing. Randomness is an argument, so a test can fix it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FIRST_S: Final = 0.02
LONGEST_S: Final = 1.0
_MS: Final = 1000


@dataclass(slots=True)
class Backoff:
    """The state of one row of tries.

    Args:
        first_s: the step after the first failure, in seconds.
        longest_s: the step is doubled up to this.
        uniform: a source of numbers in [0, 1).
    """

    first_s: float = FIRST_S
    longest_s: float = LONGEST_S
    uniform: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)
    wait_s: float = field(default=0.0, init=False)
    """What `next_wait_s` said last."""

    def next_wait_s(self, retry_after_ms: int = 0) -> float:
        """Count one more failure and return the seconds to wait before the next try."""
        step_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self.wait_s = max(step_s * (0.5 + self.uniform() / 2), retry_after_ms / _MS)
        return self.wait_s

    def reset(self) -> None:
        """Forget the failures: something succeeded."""
        self.failures = 0
        self.wait_s = 0.0
