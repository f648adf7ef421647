"""Rate limiting by a token bucket whose level may become negative.

A request takes all its tokens at once, so a batch larger than the bucket passes. A negative level is a debt, and the
caller should admit nothing more until it is repaid. Over any interval the tokens taken are therefore bounded by the
rate, one full bucket, and the last request.

The caller supplies the clock; if it goes backwards, no time has passed.
"""

from __future__ import annotations

from typing import Final

BURST_S: Final = 1.0
"""Capacity of the bucket, in seconds of the rate."""


class TokenBucket:
    """One rate limit.

    Args:
        rate: tokens per second, above zero.
    """

    __slots__ = ("_at_s", "_level", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        assert rate > 0
        self._rate = rate
        self._level = rate * BURST_S
        self._at_s = now_s

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self._rate

    def take(self, tokens: float, now_s: float) -> None:
        """Take tokens out, even if the level becomes negative."""
        self._fill(now_s)
        self._level -= tokens

    def debt_s(self, now_s: float) -> float:
        """Return the time until the debt is repaid; 0 without a debt."""
        self._fill(now_s)
        return -self._level / self._rate if self._level < 0 else 0.0

    def is_full(self, now_s: float) -> bool:
        """Return whether the bucket is full, so that it can be discarded."""
        self._fill(now_s)
        return self._level >= self._rate * BURST_S

    def change_rate(self, rate: float, now_s: float) -> None:
        """Change the rate; a debt is kept."""
        assert rate > 0
        self._fill(now_s)
        self._rate = rate
        self._level = min(self._level, rate * BURST_S)

    def _fill(self, now_s: float) -> None:
        if now_s > self._at_s:
            self._level = min(self._level + (now_s - self._at_s) * self._rate, self._rate * BURST_S)
            self._at_s = now_s
