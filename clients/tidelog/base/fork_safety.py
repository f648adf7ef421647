"""Callbacks in forked child processes: a child must not append records to batches that only its parent sends.

Methods that compare process ids raise `ForkedError` in the child. Appends of single records do not compare them;
instead, a callback disables these appends once in each child, which is cheaper than a comparison for each record.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any


class _ForkCallbacks:
    """Holds callbacks by object, as long as the object is alive, and calls them in a forked child."""

    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()

    def add(self, thing: Any, callback: Callable[[Any], None]) -> None:
        self._all[thing] = callback

    def run(self) -> None:
        for thing, callback in list(self._all.items()):
            callback(thing)


_fork_callbacks = _ForkCallbacks()
os.register_at_fork(after_in_child=_fork_callbacks.run)


def call_in_forked_child(thing: Any, callback: Callable[[Any], None]) -> None:
    """Call `callback(thing)` in every child process forked from this one while `thing` is alive."""
    _fork_callbacks.add(thing, callback)
