"""An event loop in a background thread, for blocking callers.

`run` submits a coroutine and waits for its result; Ctrl-C during the wait cancels the coroutine and is raised in the
caller. The thread is a daemon, so a program that does not close the client still exits. It starts with the first `run`.
Threads do not survive a fork, so use in a child process raises `ForkedError`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

from tidelog.errors import ClosedError, ForkedError, UsageError

T = TypeVar("T")

_log: Final = logging.getLogger("tidelog.sync")


class LoopThread:
    """Runs coroutines for other threads on a loop of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the loop was stopped, or belongs to the parent process of a fork."""
        return self._closed or os.getpid() != self._pid

    @property
    def started(self) -> bool:
        """Whether the loop was started."""
        return self._loop is not None

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], *, timeout_s: float | None = None) -> T:
        """Run the coroutine that `make` returns and wait for its result.

        Raises:
            UsageError: called in the loop's own thread or after a fork; or `stop` was called before or during the call.
            TimeoutError: `timeout_s` has passed; the coroutine was cancelled.
        """
        future = self.submit(make)
        try:
            return self.result_of(future, timeout_s)
        except BaseException:
            future.cancel()  # No effect if the TimeoutError is the coroutine's own.
            raise

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Start the coroutine that `make` returns.

        Raises:
            UsageError: as `run`.
        """
        self.check()
        self.check_other_thread()
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed; create a new one")
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(make(), self._loop)

    def result_of(self, future: concurrent.futures.Future[T], timeout_s: float | None = None) -> T:
        """Wait for the result of a future of `submit`.

        Raises:
            ClosedError: the client was closed, which cancelled the coroutine; nothing else cancels it.
            TimeoutError: `timeout_s` has passed; the coroutine continues.
        """
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClosedError(
                "the client was closed during the call, whose outcome is unknown; before close(), wait for the calls "
                "in other threads",
                definite=False,
            ) from None

    def check(self) -> None:
        """Refuse use in a forked child or after `stop`.

        Raises:
            UsageError: called after a fork or after `stop`.
        """
        if os.getpid() != self._pid:
            raise ForkedError("this client was created before a fork; create a new one in the child process")
        if self._closed:
            raise ClosedError("the client is closed; create a new one")

    def check_other_thread(self) -> None:
        """Refuse a call in the loop's own thread.

        Raises:
            UsageError: called in the loop's own thread.
        """
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking call in the client's own event loop thread would deadlock; use another thread")

    def call(self, callback: Callable[[], None]) -> None:
        """Schedule a callback on the started loop, in the order of calls of `call` and `submit`."""
        assert self._loop is not None, "the loop was started"
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Stop the loop and its thread. A second call, or one after a fork, has no effect."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):  # another thread has closed the loop
                self._loop.call_soon_threadsafe(self._loop.stop)
            if threading.current_thread() is not self._thread:
                self._thread.join()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop,), name=self._name, daemon=True)
        self._thread.start()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._runs_until_stopped(loop):
                pass
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(_wait_for(left))
        finally:
            loop.close()

    def _runs_until_stopped(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Run the loop; return whether it was stopped.

        SystemExit and KeyboardInterrupt in a callback are logged and do not stop it, since other threads wait for it.
        """
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.exception(
                "a callback raised %r in the client's thread %r, where it does not end the process; end the process "
                "from the main thread instead",
                error,
                self._name,
            )
            if self._closed:
                loop.call_soon(loop.stop)  # `stop` may have been called in the same iteration.
            return False
        return True


async def _wait_for(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until tasks have ended, ignoring their errors; a coroutine, since `gather` needs a running loop."""
    await asyncio.gather(*tasks, return_exceptions=True)
