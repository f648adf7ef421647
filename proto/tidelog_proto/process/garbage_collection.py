"""Settings of Python's garbage collector for servers: a full collection blocks the event loop."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

GC_THRESHOLD: Final = 10_000
"""Net allocations that trigger a collection of young objects; CPython's default is 700. In a node nearly all of these
objects are alive, so frequent collections only cost time."""
YOUNG_PASSES: Final = 1
"""Collections of young objects between two collections of the middle generation."""
FREEZE_EVERY: Final = 64
UNFREEZE_SHARE: Final = 4


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Pause the collector while modules are loaded: it would examine their objects repeatedly, and nearly all stay.

    Without the pause, collections take an eighth of the CPU time in which a command, a node or a gateway is loaded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def tune_garbage_collection() -> None:
    """Make collections rare, and exclude existing objects from them; called at the end of the start.

    Objects of the start (modules, models, schemas) live as long as the process. A full collection that examines them
    blocks a gateway for 80 ms, and frequent collections of young objects take a tenth of a busy node's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, YOUNG_PASSES)


class LongLived:
    """Keeps numerous long-lived objects out of full passes of the collector.

    A full collection over 4,096 open partitions blocks the event loop for 250 ms. The collector never examines frozen
    objects, so cycles among them would never be freed; so when a share of the frozen objects was dropped, all are
    unfrozen. The class does nothing in a process that did not call `tune_garbage_collection`, such as a program that
    embeds a node.
    """

    def __init__(self) -> None:
        self._created = self._frozen = self._dropped = 0

    def made(self) -> None:
        """Count a created object."""
        self._created += 1
        if self._created >= FREEZE_EVERY and gc.get_threshold()[0] == GC_THRESHOLD:
            gc.freeze()
            self._frozen += self._created
            self._created = 0

    def dropped(self, count: int) -> None:
        """Count dropped objects."""
        self._dropped += count
        if self._dropped >= FREEZE_EVERY and self._dropped * UNFREEZE_SHARE >= self._frozen:
            gc.unfreeze()
            self._frozen = self._dropped = 0
