"""Blocking work on I/O workers, with results delivered on the event loop.

`call` and `call_promptly` are for coroutines; `start`, which takes a callback, is for hot paths, where a task and a
future for each write would cost too much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Protocol):
    """A pool of worker threads that runs work with the same key in order; see `storage.io.workers.IoWorkers`."""

    def submit(self, key: int, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on the thread of `key`, after everything that was submitted with the key before."""
        ...

    def post(self, key: int, run: Callable[[], None]) -> None:
        """Run `run`, which must not raise, as `submit` does but without a future."""


class Offload:
    """I/O workers as used from one event loop. Work with the same key runs in order on the same thread."""

    def __init__(self, workers: Workers, loop: asyncio.AbstractEventLoop) -> None:
        self._workers = workers
        self._loop = loop
        self.pending = 0
        """Number of calls that have not returned. While it is 0, the event loop may do short work itself, because no
        earlier work is pending that this could overtake."""
        self.rests = False
        """Set by work on the only worker while it sleeps by itself, and needs neither the GIL nor a processor."""

    @property
    def is_busy(self) -> bool:
        """Whether a call is pending and does not rest."""
        return self.pending > 0 and not self.rests

    async def call(self, key: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` on the worker of `key` and return its result or raise its error."""
        future = asyncio.wrap_future(self._workers.submit(key, work, *args, **kwargs), loop=self._loop)
        self.pending += 1
        future.add_done_callback(self._called)
        # Shielded, because submitted work runs to its end even if its caller is cancelled.
        return await asyncio.shield(future)

    async def call_promptly(self, key: int, work: Callable[[], T]) -> T:
        """Run `work` as `call` does, with one future and one callback of the event loop instead of three of each.

        For short reads of clients, whose latency this shortens.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(result: T | None, error: BaseException | None) -> None:
            if answer.done():  # The caller was cancelled; the work has run to its end.
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        self.start(key, work, done)
        result: T = await answer
        return result

    def _called(self, _: asyncio.Future[Any]) -> None:
        self.pending -= 1

    def start(self, key: int, work: Callable[[], T], done: Callable[[T | None, BaseException | None], None]) -> None:
        """Run `work` on the worker of `key`, then call `done(result, error)` on the event loop.

        The error is None if `work` has returned, the result None if it has raised. If the event loop is closed
        meanwhile, `done` is not called.
        """

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001 - any error is delivered to the caller
                error = caught
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._finish, done, result, error)

        self._workers.post(key, run)
        self.pending += 1

    def _finish(
        self, done: Callable[[T | None, BaseException | None], None], result: T | None, error: BaseException | None
    ) -> None:
        self.pending -= 1
        done(result, error)
