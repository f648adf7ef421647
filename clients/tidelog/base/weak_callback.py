"""Callbacks that do not keep their object alive, so that an unused producer is garbage-collected."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Callable

Watch = Callable[[Callable[[], None]], Callable[[], None]]
"""A function that registers a callback for changes, and returns a function that unregisters the callback."""


def watch_weakly(watch: Watch, loop: asyncio.AbstractEventLoop, method: Callable[[], None]) -> Callable[[], None]:
    """Register a bound method without a strong reference to its object; return a function that unregisters it.

    Args:
        watch: registers the callback that calls `method`.
        loop: the loop on which the callback is unregistered when the object is garbage-collected.
    """

    def collected(_: object) -> None:  # Called in the thread in which the garbage collector runs.
        with contextlib.suppress(RuntimeError):  # raised if the loop is closed
            loop.call_soon_threadsafe(unwatch)

    reference = weakref.WeakMethod(method, collected)

    def news() -> None:
        bound_method = reference()
        if bound_method is not None:
            bound_method()

    unwatch = watch(news)
    return unwatch
