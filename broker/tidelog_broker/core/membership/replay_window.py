"""Replay protection for datagrams: a sliding window over each sender's counters, as in IPsec.

A process numbers its datagrams in increasing order. The receiver keeps the highest number and a bitmap of the last
`WINDOW` numbers up to it: reordered datagrams within the window are accepted once, older ones are rejected. A new
incarnation of the sender starts a new window and invalidates the previous one.

After a restart of the receiver its windows are empty, so it accepts recorded datagrams of a running process once. This
is harmless: their records were true when sent, and later records outrank them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WINDOW: Final = 1024
_MASK: Final = (1 << WINDOW) - 1


@dataclass(slots=True)
class _Window:
    incarnation: int
    highest: int = 0
    seen: int = 0  # Bit i: the datagram numbered highest - i was received.


class ReplayWindows:
    """The windows of all senders.

    Args:
        senders_max: maximum number of windows; beyond it, the window that was started first is evicted. Senders are
            authenticated members of the cluster, so the limit only has to exceed their number.
    """

    def __init__(self, senders_max: int) -> None:
        self._senders_max = senders_max
        self._windows: dict[str, _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def incarnation(self, sender: str) -> int:
        """Return the highest incarnation received from a sender, 0 before the first datagram."""
        window = self._windows.get(sender)
        return window.incarnation if window is not None else 0

    def accept(self, sender: str, incarnation: int, counter: int) -> bool:
        """Record a datagram. Return False if it is a duplicate, below the window, or of an older incarnation."""
        window = self._windows.get(sender)
        if window is not None and incarnation < window.incarnation:
            return False
        if window is None or incarnation > window.incarnation:
            self._windows.pop(sender, None)
            while len(self._windows) >= self._senders_max:
                del self._windows[next(iter(self._windows))]
            self._windows[sender] = _Window(incarnation, counter, 1)
            return True
        ahead = counter - window.highest
        if ahead > 0:
            window.seen = (window.seen << ahead | 1) & _MASK if ahead < WINDOW else 1
            window.highest = counter
            return True
        if -ahead >= WINDOW or window.seen >> -ahead & 1:
            return False
        window.seen |= 1 << -ahead
        return True
