"""Settings of Python's garbage collector for servers: no pass blocks the event loop for long (ADR 0191)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from typing import Final

YOUNG_OBJECTS: Final = 10_000
"""Net allocations that trigger a collection of young objects; CPython's default is 700. In a node nearly all of these
objects are alive, so frequent collections only cost time."""
YOUNG_PASSES: Final = 1
"""Collections of young objects between two collections of the middle generation."""
MIDDLE_PASSES: Final = 0
"""Collections of the middle generation between two of the oldest one."""
NEW_OBJECTS: Final = 4 * YOUNG_OBJECTS
"""Upper bound of the objects that one collection of the oldest generation examines and freezes."""
CHECK_EVERY_S: Final = 10.0
IDLE_SHARE: Final = 0.05
"""A process that takes less than this share of a processor counts as idle."""
GROWN_WHEN_IDLE: Final = 120_000
"""New or dropped objects after which an idle process examines all objects."""
GROWN_WHEN_BUSY: Final = 1_000_000
"""New objects after which a busy process examines all objects, if it has not examined more of them before."""


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


class _Collector:
    """Freezes what survives a collection, and examines everything when the process is idle or has grown.

    A collection of the oldest generation examines all objects of the process that are not frozen: 80 ms in a gateway
    after its start, 250 ms in a node with 4,096 open partitions. Here it runs after `NEW_OBJECTS` objects at most, and
    its survivors are frozen, so each takes about 10 ms. References still free frozen objects, but the collector does
    not find cycles among them; so all objects are unfrozen and examined from time to time.
    """

    def __init__(self) -> None:
        self._examined = 0  # by the last complete collection, and those that need none
        self._grown = 0  # an upper bound
        self._dropped = 0
        self._cpu_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._examine_all()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)
        gc.callbacks.append(self._on_pass)
        self._check_again(loop)

    def add_long_lived(self, objects: int) -> None:
        if objects > 0:
            self._examined += objects
        else:
            self._dropped -= objects

    def _on_pass(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._grown += NEW_OBJECTS

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cpu_s = time.process_time()
        loop.call_later(CHECK_EVERY_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        is_idle = time.process_time() - self._cpu_s < IDLE_SHARE * CHECK_EVERY_S
        if is_idle:
            is_due = self._dropped >= GROWN_WHEN_IDLE or self._has_grown(GROWN_WHEN_IDLE)
        else:
            is_due = self._has_grown(max(GROWN_WHEN_BUSY, self._examined))
        if is_due:
            self._examine_all()
        self._check_again(loop)

    def _has_grown(self, limit: int) -> bool:
        if self._grown >= limit:  # counting a million objects takes 10 ms
            self._grown = gc.get_freeze_count() - self._examined
        return self._grown >= limit

    def _examine_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.collect()  # Python compares the size of the oldest generation with that of its last collection
        self._examined, self._grown, self._dropped = gc.get_freeze_count(), 0, 0


_collector: Final = _Collector()
"""The collector is one for the whole process."""


def tune_garbage_collection(loop: asyncio.AbstractEventLoop) -> None:
    """Freeze existing objects, keep later collections short, and examine all objects when `loop` is idle.

    Objects of the start (modules, models, schemas) live as long as the process.
    """
    _collector.start(loop)


def count_long_lived(objects: int) -> None:
    """Count about `objects` objects that were created and are not garbage for long, or, if negative, that were dropped.

    The former do not count as new; the latter may be in cycles, which are freed when the process is idle. Nothing
    happens in a process that did not call `tune_garbage_collection`, such as a program that embeds a node.
    """
    _collector.add_long_lived(objects)
