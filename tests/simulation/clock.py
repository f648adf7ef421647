"""Virtual time: events in the order of their times, one source of randomness, and a trace of what happened.

The trace keeps the newest events to be shown when an invariant breaks, and a running checksum over all of them: two
runs of one seed must agree on it, or the world depends on something that it should not.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random

from crc32c import crc32c

TRACE_EVENTS = 3000


class Clock:
    """Time in µs, an event heap, randomness, the trace."""

    def __init__(self, seed: int) -> None:
        self.now_us = 1_000_000
        self.random = Random(seed)
        self.checksum = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._trace: deque[tuple[int, tuple[object, ...]]] = deque(maxlen=TRACE_EVENTS)

    @property
    def now_ms(self) -> int:
        """Milliseconds, rounded down."""
        return self.now_us // 1000

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Call `action` in `delay_us`, after everything that is due then already."""
        assert delay_us >= 0
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, action))

    def step(self) -> None:
        """Run the next event."""
        self.now_us, _, action = heapq.heappop(self._heap)
        self.events += 1
        action()

    def run_until(self, end_us: int) -> None:
        """Run all events up to a time."""
        while self._heap and self._heap[0][0] <= end_us:
            self.step()
        self.now_us = max(self.now_us, end_us)

    def note(self, *what: object, checksum: int = 0) -> None:
        """Record an event; `checksum` covers the state of its objects."""
        self._trace.append((self.now_us, what))
        text = b"%d %d %a" % (self.now_us, checksum, what[0])
        self.checksum = crc32c(text, self.checksum)

    def trace(self, newest: int) -> list[tuple[int, tuple[object, ...]]]:
        """Return the newest events, oldest first."""
        return list(self._trace)[-newest:]
