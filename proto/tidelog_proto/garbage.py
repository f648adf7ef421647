"""Garbage collection of a process that serves: a full pass stops its event loop for as long as it looks."""

from __future__ import annotations

import gc
from typing import Final

GC_THRESHOLD: Final = 50_000
"""Objects made and not dropped before the collector looks at the young ones; CPython's default is 700."""


def calm_garbage_collection() -> None:
    """Have the collector look seldom, and only at objects made from now on: call it when a start is complete.

    Objects made during the start (modules, models, schemas) live until the end. A full pass over them took a gateway
    80 ms, in the middle of whichever request triggered it, and passes over young objects took a tenth of a busy node's
    time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
