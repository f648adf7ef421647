"""Exponential back-off with jitter; a delay is never shorter than the node's `retry_after_ms`.

The jitter covers the upper half of the step (a delay between half the step and the step): clients that failed together
do not retry together, and a delay is never close to 0. Tests may pass their own source of randomness.
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
    """Counts the failures of one operation and computes the delay before its next attempt.

    Args:
        first_s: the step after the first failure, in seconds.
        longest_s: the largest step; each failure doubles the step up to this.
        uniform: a source of numbers in [0, 1).
    """

    first_s: float = FIRST_S
    longest_s: float = LONGEST_S
    uniform: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)
    wait_s: float = field(default=0.0, init=False)
    """The last result of `next_wait_s`."""

    def next_wait_s(self, retry_after_ms: int = 0) -> float:
        """Count a failure and return the delay before the next attempt, in seconds."""
        step_s = min(self.longest_s, self.first_s * 2.0 ** min(self.failures, 32))
        self.failures += 1
        self.wait_s = max(step_s * (0.5 + self.uniform() / 2), retry_after_ms / _MS)
        return self.wait_s

    def reset(self) -> None:
        """Reset the failures after a success."""
        self.failures = 0
        self.wait_s = 0.0
