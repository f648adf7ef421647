"""Settings of Python's garbage collector for servers: no collection blocks the event loop for long (ADR 0191)."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

YOUNG_OBJECTS: Final = 10_000
"""Net allocations that trigger a collection of young objects; CPython's default is 700. In a node nearly all of these
objects are alive, so frequent collections only cost time."""
YOUNG_PASSES: Final = 1
"""Collections of young objects between two collections of the middle generation."""
MIDDLE_PASSES: Final = 0
"""Collections of the middle generation between two of the oldest one."""
CHECK_EVERY_S: Final = 10.0
IDLE_SHARE: Final = 0.05
"""A process that takes less than this share of a processor counts as idle."""
GROWN_WHEN_IDLE: Final = 300_000
"""An idle process examines all objects when it has grown by this many memory blocks (`sys.getallocatedblocks`)."""
GROWN_WHEN_BUSY: Final = 10_000_000
"""A busy process examines all objects when it has grown by this many memory blocks, and at least doubled them."""
GROWN_BYTES: Final = 1024**3
"""A busy process also examines all objects when its memory has grown by this many bytes, and at least doubled."""


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
    """Freezes the survivors of each full collection, and examines all objects when the process is idle or has grown.

    A collection of the oldest generation examines all objects of the process that are not frozen: 80 ms in a gateway
    after its start, 900 ms in a node with 4,096 open partitions. Here such a collection runs after 40,000 new objects
    at most, and its survivors are frozen, so each takes some milliseconds. Frozen objects are still freed when their
    last reference is dropped, but the collector does not find cycles among them; so all objects are unfrozen and
    examined from time to time.
    """

    def __init__(self) -> None:
        self._blocks = 0  # Memory blocks after the last complete collection, plus those added as long-lived since.
        self._memory_bytes = 0  # Memory after the last complete collection.
        self._dropped = 0
        self._cpu_s = 0.0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._examine_all()
        gc.set_threshold(YOUNG_OBJECTS, YOUNG_PASSES, MIDDLE_PASSES)
        gc.callbacks.append(_freeze_survivors)
        self._check_again(loop)

    def add_long_lived(self, blocks: int) -> None:
        if blocks > 0:
            self._blocks += blocks
        else:
            self._dropped -= blocks

    def _check_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cpu_s = time.process_time()
        loop.call_later(CHECK_EVERY_S, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        grown = sys.getallocatedblocks() - self._blocks
        if time.process_time() - self._cpu_s < IDLE_SHARE * CHECK_EVERY_S:
            is_due = max(grown, self._dropped) >= GROWN_WHEN_IDLE
        else:
            grown_bytes = _memory_bytes() - self._memory_bytes
            is_due = grown >= max(GROWN_WHEN_BUSY, self._blocks) or grown_bytes >= max(GROWN_BYTES, self._memory_bytes)
        if is_due:
            self._examine_all()
        self._check_again(loop)

    def _examine_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Python skips collections of the oldest generation while it has grown little since its last collection.
        gc.collect()
        self._blocks, self._memory_bytes, self._dropped = sys.getallocatedblocks(), _memory_bytes(), 0


def _freeze_survivors(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


def _memory_bytes() -> int:
    """Return the anonymous memory of this process; 0 where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


_collector: Final = _Collector()
"""One for the whole process, as Python's collector is."""


def tune_garbage_collection(loop: asyncio.AbstractEventLoop) -> None:
    """Freeze existing objects, keep later collections short, and examine all objects when the process is idle or grew.

    Existing objects (modules, models, schemas) are frozen, because most live as long as the process. `loop` runs the
    checks.
    """
    _collector.start(loop)


def count_long_lived(blocks: int) -> None:
    """Count about `blocks` memory blocks of new long-lived objects or, if negative, of dropped ones.

    Long-lived objects do not count as growth. Dropped objects may be in cycles, which are freed when the process is
    idle. Without effect in a process that did not call `tune_garbage_collection`, such as a program that embeds a node.
    """
    _collector.add_long_lived(blocks)
