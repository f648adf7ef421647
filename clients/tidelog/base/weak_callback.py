"""Watching without keeping the watcher alive: a producer that is dropped is collected once its records are settled."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable

Watch = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes what is to be called at news, and returns what ends that."""


def watch_weakly(watch: Watch, loop: asyncio.AbstractEventLoop, method: Callable[[], None]) -> Callable[[], None]:
    """Have a bound method called at news for as long as its object lives otherwise; return what ends it sooner.

    Args:
        watch: registers a callback.
        loop: the event loop that the watcher belongs to.
        method: the bound method.
    """

    def collected(_: object) -> None:  # in whichever thread the garbage collector runs
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(unwatch)

    reference = weakref.WeakMethod(method, collected)

    def news() -> None:
        found = reference()
        if found is not None:
            found()

    unwatch = watch(news)
    return unwatch
