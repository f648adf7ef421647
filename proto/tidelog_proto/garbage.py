"""Garbage collection of a process that serves: a full pass stops its event loop for as long as it looks."""

from __future__ import annotations

import gc
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Objects made and not dropped before the collector looks at the young ones; CPython's default is 700."""


def calm_garbage_collection() -> None:
    """Have the collector look at what is made from now on, and seldom: call it when a start is complete.

    What a start has made (modules, models, schemas) stays until the end. A full pass over it took a gateway 80 ms, in
    the middle of whichever request brought it on, and a
    tenth of a busy node's time went into passes over young objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
