"""What a pass of compaction waits for, and for how long nothing of it has moved.

A pass may take an hour and be well: it reads all of a log, at a bounded pace. One whose disk hangs, or whose copies do
not answer, takes as long for who waits for its end. So each step says what it waits for, each piece that was read and
each step counts as a move, and who asked for the pass is told when nothing has moved for a while.

Times are of the loop's clock, in seconds. `moved` may be called from any thread, the rest from the loop's.
"""

from __future__ import annotations

from collections.abc import Callable


class LastMove:
    """When something last moved.

    Args:
        now_s: the clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._at_s = now_s()

    def moved(self) -> None:
        """Note that something has moved just now."""
        self._at_s = self._now_s()

    @property
    def still_s(self) -> float:
        """For how long nothing has."""
        return self._now_s() - self._at_s


class PassWatch:
    """See the module.

    Args:
        now_s: the clock.
        node: what all passes of the node do: one that waits for its turn behind others moves as these do.
    """

    def __init__(self, now_s: Callable[[], float], node: LastMove) -> None:
        self._own = LastMove(now_s)
        self._node = node
        self._is_queued = False
        self._waits_for: Callable[[], str] = str

    def step(self, waits_for: Callable[[], str], *, queued: bool = False) -> None:
        """Begin a step.

        Args:
            waits_for: says, when somebody wants to know, what the step waits for.
            queued: whether other passes of the node come first.
        """
        self._waits_for = waits_for
        self._is_queued = queued
        self._own.moved()

    def begun(self) -> None:
        """The pass has its turn now."""
        self._is_queued = False
        self.moved()

    def moved(self) -> None:
        """Note that the pass has read or written something."""
        self._own.moved()
        self._node.moved()

    @property
    def still_s(self) -> float:
        """For how long nothing has moved of what the pass needs."""
        return min(self._own.still_s, self._node.still_s) if self._is_queued else self._own.still_s

    @property
    def waits_for(self) -> str:
        """What the step that is under way waits for."""
        return self._waits_for()
