"""Behind a fork nothing joins what was gathering before it: nobody in the child would ever send that.

Calls that look before they accept find out by themselves (`ForkedError`). Those that join without a look, for speed,
are shut here once a fork instead of asking the kernel for the process's id once a record.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any


class _ForkCallbacks:
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
    """Call `shut(thing)` in every child process of this one, for as long as `thing` lives."""
    _fork_callbacks.add(thing, callback)
