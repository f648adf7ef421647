"""Garbage collection of a process that serves: a full pass stops its event loop for as long as it looks."""

from __future__ import annotations

import gc
from typing import Final

GC_THRESHOLD: Final = 10_000
"""Objects made and not dropped before the collector looks at the young ones; CPython's default is 700. A pass over
50,000 of a node, all of which live, took 10 to 20 ms."""
YOUNG_PASSES: Final = 1
"""So many passes over young objects before those that were found to live are looked at once more."""
FREEZE_EVERY: Final = 64
UNFREEZE_SHARE: Final = 4


def calm_garbage_collection() -> None:
    """Have the collector look seldom, and only at objects made from now on: call it when a start is complete.

    Objects made during the start (modules, models, schemas) live until the end. A full pass over them took a gateway
    80 ms, in the middle of whichever request triggered it, and passes over young objects took a tenth of a busy node's
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, YOUNG_PASSES)


class LongLived:
    """Keeps numerous long-lived objects out of full passes of the collector.

    A full pass over 4,096 open partitions stops the event loop for 250 ms. The collector never examines frozen objects,
    so cycles among them would never be freed; when a share of them was dropped, all are examined once more. This class
    does nothing in a process without `calm_garbage_collection`, such as a program that embeds a node.
    """

    def __init__(self) -> None:
        self._made = self._frozen = self._dropped = 0

    def made(self) -> None:
        """Count an object that was made."""
        self._made += 1
        if self._made >= FREEZE_EVERY and gc.get_threshold()[0] == GC_THRESHOLD:
            gc.freeze()
            self._frozen += self._made
            self._made = 0

    def dropped(self, count: int) -> None:
        """Count objects that were dropped."""
        self._dropped += count
        if self._dropped >= FREEZE_EVERY and self._dropped * UNFREEZE_SHARE >= self._frozen:
            gc.unfreeze()
            self._frozen = self._dropped = 0
