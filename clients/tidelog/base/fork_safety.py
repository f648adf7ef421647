"""Behind a fork nothing joins what was gathering before it: nobody in the child would ever send that.

Calls that look before they accept find out by themselves (`ForkedError`). Those that join without a look, for speed,
are shut here once a fork instead of asking the kernel for the process's id once a record.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any


class _Shutters:
    def __init__(self) -> None:
        self._all: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()

    def add(self, thing: Any, shut: Callable[[Any], None]) -> None:
        self._all[thing] = shut

    def run(self) -> None:
        for thing, shut in list(self._all.items()):
            shut(thing)


_shutters = _Shutters()
os.register_at_fork(after_in_child=_shutters.run)


def shut_behind_fork(thing: Any, shut: Callable[[Any], None]) -> None:
    """Call `shut(thing)` in every child process of this one, for as long as `thing` lives."""
    _shutters.add(thing, shut)
