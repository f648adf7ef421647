"""The pace of compaction passes: as fast as publishers and readers leave resources for (ADR 0180).

A pass calls the pace after each read. If there were no publishes and fetches since the last call, it continues at once.
Otherwise it rests for a multiple of the time that it has worked:

    requests at the rate `FREQUENT_PER_S`     at least as long as it has worked; in proportion at other rates, up to
                                              `REST_FREQUENT_MAX` times as long
    slow requests                             twice as long as before, at most `REST_MAX` times as long as it has worked

Requests are slow if the event loop, which serves them, reacts later than `SLOW_S` to a call that the pass sends when it
begins to work. A rest for requests ends after `REST_S_MAX`, so that a pass always makes progress; a configured rate may
require a longer one.

While a pass works, the event loop does not poll for messages: it would yield the processor to the pass between two
polls, and get it back up to 4 ms later, at a tick of the kernel (ADR 0041).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from tidelog_broker.storage.partition.compaction_pass import PassStoppedError

FREQUENT_PER_S: Final = 100
REST_FREQUENT_MAX: Final = 3.0
SLOW_S: Final = 0.001
REST_MAX: Final = 4.0
REST_S_MAX: Final = 1.0
STEP_S: Final = 0.05
"""How often a resting pass checks whether it has to stop."""


class LoopDelay:
    """Measures how late an event loop reacts to a call of another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._sent_s = 0.0
        self._delay_s: float | None = 0.0

    def send(self) -> None:
        """Send a call to the loop."""
        self._sent_s, self._delay_s = time.monotonic(), None
        try:
            self._loop.call_soon_threadsafe(self._arrived)
        except RuntimeError:  # The loop is closed: the node stops.
            self._delay_s = 0.0

    def _arrived(self) -> None:
        self._delay_s = time.monotonic() - self._sent_s

    @property
    def seconds(self) -> float:
        """The delay of the last call; if the loop has not reacted yet, the time since the call."""
        delay_s = self._delay_s
        return time.monotonic() - self._sent_s if delay_s is None else delay_s


def rest_ratio(ratio: float, *, requests_per_s: float, delay_s: float) -> float:
    """Return how long a pass rests, as a multiple of its working time; `ratio` was that multiple for the last rest."""
    if not requests_per_s:
        return 0.0
    least = min(requests_per_s / FREQUENT_PER_S, REST_FREQUENT_MAX)
    return min(max(2 * ratio, least), REST_MAX) if delay_s > SLOW_S else max(ratio / 2, least)


class CompactionPace:
    """Makes one compaction pass rest between its reads. Called on the pass's thread.

    Args:
        loop: the event loop that serves the node's requests.
        bytes_per_s: upper bound of the rate of reads; None: the pass rests only for requests; 0: it never rests.
        requests: returns the number of publishes and fetches so far.
        must_stop: returns whether the pass has to stop.
        moved: called after each read, and every `STEP_S` during a rest.
        rests: called with True when a rest begins, and with False when it ends.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        bytes_per_s: int | None,
        *,
        requests: Callable[[], int],
        must_stop: Callable[[], bool],
        moved: Callable[[], None],
        rests: Callable[[bool], None],
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._requests = requests
        self._must_stop = must_stop
        self._moved = moved
        self._rests = rests
        self._delay = LoopDelay(loop)
        self._ratio = 0.0
        self._seen = requests()
        self._seen_s = self._resumed_s = time.monotonic()

    def __call__(self, size_bytes: int) -> None:
        """Rest after a read.

        Raises:
            PassStoppedError: the pass has to stop.
        """
        if self._bytes_per_s == 0:
            self._wait(0)
            return
        now_s, requests = time.monotonic(), self._requests()
        worked_s = now_s - self._resumed_s
        passed_s = max(now_s - self._seen_s, 1e-6)
        self._ratio = rest_ratio(
            self._ratio, requests_per_s=(requests - self._seen) / passed_s, delay_s=self._delay.seconds
        )
        self._seen, self._seen_s = requests, now_s
        rest_s = min(self._ratio * worked_s, REST_S_MAX)
        if self._bytes_per_s:
            rest_s = max(rest_s, size_bytes / self._bytes_per_s - worked_s)
        self._wait(rest_s)
        self._resumed_s = time.monotonic()
        self._delay.send()

    def _wait(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        if seconds > 0:
            self._rests(True)
        try:
            while not self._must_stop():
                self._moved()
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    return
                time.sleep(min(left_s, STEP_S))
            raise PassStoppedError
        finally:
            self._rests(False)
