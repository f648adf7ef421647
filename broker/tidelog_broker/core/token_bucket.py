"""A rate that may be exceeded and is paid for: a bucket of tokens whose level may fall below zero.

Whatever comes is taken out at once, however much it is, so that a batch larger than the bucket passes, too. What the
level lacks to zero is a debt, and nothing more should come until it is paid. So over any time no more passes than the
rate allows, a full bucket, and the last piece.

The clock is the caller's and only runs forwards; where it seems to run backwards, no time has passed.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""A full bucket holds what the rate gives in so long."""


class TokenBucket:
    """One rate of one caller.

    Args:
        rate: tokens a second, above zero.
        now_s: the clock.
    """

    __slots__ = ("_at_s", "_level", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        assert rate > 0
        self._rate = rate
        self._level = rate * BURST_S
        self._at_s = now_s

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def take(self, tokens: float, now_s: float) -> None:
        """Take tokens out, also those that are not there."""
        self._fill(now_s)
        self._level -= tokens

    def debt_s(self, now_s: float) -> float:
        """Return how long it takes until the debt is paid; 0 without one."""
        self._fill(now_s)
        return -self._level / self._rate if self._level < 0 else 0.0

    def is_full(self, now_s: float) -> bool:
        """Whether it is as if nothing had been taken."""
        self._fill(now_s)
        return self._level >= self._rate * BURST_S

    def change_rate(self, rate: float, now_s: float) -> None:
        """Go on with another rate; what is owed stays owed."""
        assert rate > 0
        self._fill(now_s)
        self._rate = rate
        self._level = min(self._level, rate * BURST_S)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._level = min(self._level + (now_s - self._at_s) * self._rate, self._rate * BURST_S)
            self._at_s = now_s
