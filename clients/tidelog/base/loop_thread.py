"""An event loop in a thread of its own, for callers that block.

`run` hands a coroutine over and waits for its result; Ctrl-C while it waits cancels the coroutine and reaches the
caller. The thread is a daemon: a program that forgets to close still ends. It starts with the first `run`, so making
one costs nothing, and it is of no use behind a fork (threads do not survive one), which is said clearly.
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
    """Runs coroutines for other threads."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether it was stopped, or belongs to the process before a fork."""
        return self._closed or os.getpid() != self._pid

    @property
    def started(self) -> bool:
        """Whether anything was ever run."""
        return self._loop is not None

    def run(self, make: Callable[[], Coroutine[Any, Any, T]], *, timeout_s: float | None = None) -> T:
        """Run the coroutine that `make` returns and wait for its result.

        Raises:
            UsageError: called in the loop's own thread, behind a fork, or after `stop`, which may come meanwhile.
            TimeoutError: `timeout_s` passed; the coroutine was cancelled.
        """
        future = self.submit(make)
        try:
            return self.result_of(future, timeout_s)
        except BaseException:
            future.cancel()  # does nothing when the coroutine itself raised
            raise

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> concurrent.futures.Future[T]:
        """Begin to run the coroutine that `make` returns.

        Raises:
            UsageError: as `run`.
        """
        self.check()
        self.check_other_thread()
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            if self._loop is None:
                self._start()
            assert self._loop is not None
            return asyncio.run_coroutine_threadsafe(make(), self._loop)

    def result_of(self, future: concurrent.futures.Future[T], timeout_s: float | None = None) -> T:
        """Wait for what `submit` returned.

        Raises:
            ClosedError: it was ended because the client is closed, however far it had come; nothing else cancels what
                runs in the loop.
            TimeoutError: `timeout_s` passed; it goes on.
        """
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise ClosedError("the client was closed meanwhile", definite=False) from None

    def check(self) -> None:
        """Make sure that the loop can be reached from here.

        Raises:
            UsageError: behind a fork, or after `stop`.
        """
        if os.getpid() != self._pid:
            raise ForkedError("this client was made before a fork: make a new one in the child process")
        if self._closed:
            raise ClosedError("the client is closed")

    def check_other_thread(self) -> None:
        """Make sure that this is not the loop's own thread.

        Raises:
            UsageError: it is.
        """
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking call inside the client's own event loop would wait for itself for ever")

    def call(self, callback: Callable[[], None]) -> None:
        """Have the loop, which runs already, call something soon; in the order of these calls and of `submit`."""
        assert self._loop is not None, "something was run before"
        self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the loop and its thread. Doing it twice, or behind a fork, does nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._loop is not None and self._thread is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already, as something raised SystemExit meanwhile
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
        """Run the loop; return whether it was stopped. What ends a program does not end it: others wait for it."""
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.exception(
                "%r was raised in the thread %r, where the client calls back, and ends nothing there: have the main "
                "thread end the program",
                error,
                self._name,
            )
            if self._closed:
                loop.call_soon(loop.stop)  # what was to stop it may have been in the same turn
            return False
        return True


async def _wait_for(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Wait until tasks have ended, whatever they end with; on the loop, so that there is one to gather them on."""
    await asyncio.gather(*tasks, return_exceptions=True)
