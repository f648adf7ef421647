"""Blocking work from the event loop: onto I/O workers, and the result back onto the loop.

Two forms: `call` for coroutines, and `start` with a callback for the hot path, where a task and a future
per group would cost more than the bookkeeping they save.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from tidelog_broker.storage.workers import IoWorkers

P = ParamSpec("P")
T = TypeVar("T")


class Offload:
    """I/O workers as seen from one event loop. Work with the same key runs in order on the same thread."""

    def __init__(self, workers: IoWorkers, loop: asyncio.AbstractEventLoop) -> None:
        self._workers = workers
        self._loop = loop

    async def call(self, key: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on the worker of `key` and return what it returns or raise what it raises."""
        return await asyncio.wrap_future(self._workers.submit(key, lambda: work(*args, **kwargs)), loop=self._loop)

    def start(self, key: int, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` on the worker of `key`; `done(result, error)` is called on the loop."""

        def finished(future: Future[T]) -> None:
            error = future.exception()
            result = None if error is not None else future.result()
            self._post(done, result, error)

        self._workers.submit(key, work).add_done_callback(finished)

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)
