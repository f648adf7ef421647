"""Which datagrams of a sender were seen before: a window over its counters.

A process numbers its datagrams upwards. The receiver keeps the highest number and, in one integer, which of the
`WINDOW` numbers below it have come: those that are reordered on the way are taken once, older ones never (as IPsec
does it). A new incarnation of the sender begins anew and outranks the old one for good.

What it does not do: a receiver that was restarted has empty windows and takes recordings of a living process once.
They can only repeat what was true, and whatever is later outranks it.
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
    seen: int = 0  # bit i: the number highest - i has come


class ReplayWindows:
    """The windows of all senders.

    Args:
        senders_max: windows kept; past it the one that was made first goes. Senders are authenticated members of the
            cluster, so this only has to be more than there are of them.
    """

    def __init__(self, senders_max: int) -> None:
        self._senders_max = senders_max
        self._windows: dict[str, _Window] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def incarnation(self, sender: str) -> int:
        """Return the highest incarnation heard of a sender, 0 for none."""
        window = self._windows.get(sender)
        return window.incarnation if window is not None else 0

    def accept(self, sender: str, incarnation: int, counter: int) -> bool:
        """Note a datagram. Return False if it was seen before, is too old to tell, or is of an older incarnation."""
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
