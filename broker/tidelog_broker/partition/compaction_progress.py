"""Progress of a compaction pass: its current step, and the time since its last progress.

A working pass may take an hour, because it reads the whole log at a bounded rate. Its caller cannot distinguish it from
a pass whose disk hangs or whose replicas do not answer. So each step names the event it waits for, each step and read
counts as progress, and a caller gets an error after some time without progress.

Times are of the event loop's clock, in seconds. `moved` is thread-safe, the rest is for the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable


class ProgressClock:
    """The time of the last progress."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._at_s = now_s()

    def moved(self) -> None:
        """Record progress."""
        self._at_s = self._now_s()

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress."""
        return self._now_s() - self._at_s


class CompactionProgress:
    """Tracks the progress of one partition's compaction passes.

    Args:
        node: the progress of all passes of the node, which counts as the progress of a queued pass.
    """

    def __init__(self, now_s: Callable[[], float], node: ProgressClock) -> None:
        self._own = ProgressClock(now_s)
        self._node = node
        self._is_queued = False
        self._waits_for: Callable[[], str] = str

    def step(self, waits_for: Callable[[], str], *, queued: bool = False) -> None:
        """Begin a step.

        Args:
            waits_for: returns, on demand, what the step waits for.
            queued: whether other passes of the node come first.
        """
        self._waits_for = waits_for
        self._is_queued = queued
        self._own.moved()

    def begun(self) -> None:
        """Record that the queued pass has begun."""
        self._is_queued = False
        self.moved()

    def moved(self) -> None:
        """Record that the pass has read or written something."""
        self._own.moved()
        self._node.moved()

    @property
    def idle_s(self) -> float:
        """Seconds since the last progress that the pass depends on."""
        return min(self._own.idle_s, self._node.idle_s) if self._is_queued else self._own.idle_s

    @property
    def waits_for(self) -> str:
        """Description of the event that the current step waits for."""
        return self._waits_for()
