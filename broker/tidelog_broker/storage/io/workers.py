"""Threads on which the node's files are read and written, so that its event loop never waits for a disk.

A key always goes to the same thread, so the work of one partition runs in the order in which it was submitted. A
thread is begun by the first work that needs it. Rejected: `ThreadPoolExecutor`, which has one queue for all threads
and gives no order per key.

Some work is only a head start: taking space ahead, syncing rolled segments. Whoever needs the result does the work
himself if it has not been done, and meets the errors where they can be answered; so it is `offer`ed, and an offer is
simply declined where much waits already: nothing that was submitted waits for more than a few head starts.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

PENDING_MAX: Final = 65_536
"""Per thread. The node's own caps on bytes and batches in flight hold long before; this one guards against bugs."""

HEAD_STARTS_MAX: Final = 16
"""How much may wait for a thread that still takes offers."""


class WorkersFullError(Exception):
    """More work was submitted than may wait."""


class IoWorkers:
    """A fixed number of threads with a queue each."""

    def __init__(self, count: int = 2, *, name: str = "io", pending_max: int = PENDING_MAX) -> None:
        assert count > 0
        self._name = name
        self._pending_max = pending_max
        self._queues: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(count)]
        self._threads: list[threading.Thread | None] = [None] * count
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, key: int, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on the thread of `key`, after everything that was submitted with the key before.

        Raises:
            WorkersFullError: too much is waiting.
            RuntimeError: after `close`.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to whoever waits)
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(key, run)
        return future

    def post(self, key: int, run: Callable[[], None]) -> None:
        """Run `run`, which must not raise, as `submit` does but without a future: for the hot path.

        Raises:
            WorkersFullError, RuntimeError: as `submit`.
        """
        number = key % len(self._queues)
        work = self._queues[number]
        if work.qsize() >= self._pending_max:
            raise WorkersFullError(f"{self._pending_max} pieces of work wait for a thread of {self._name!r}")
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the workers {self._name!r} are closed")
            if self._threads[number] is None:
                thread = threading.Thread(target=_run, args=(work,), name=f"tidelog-{self._name}-{number}", daemon=True)
                self._threads[number] = thread
                thread.start()
            work.put(run)

    def offer(self, run: Callable[[], None], *, key: int = 0) -> bool:
        """As `post`, for a head start; False when nobody will do it and the caller is on its own."""
        if self._queues[key % len(self._queues)].qsize() >= HEAD_STARTS_MAX:
            return False
        try:
            self.post(key, run)
        except (WorkersFullError, RuntimeError):
            return False
        return True

    def close(self) -> None:
        """Take no more work, finish what was submitted, end the threads."""
        with self._lock:
            self._closed = True
            threads = [thread for thread in self._threads if thread is not None]
            for work in self._queues:
                work.put(None)
        for thread in threads:
            thread.join()


def _run(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := work.get()) is not None:
        run()
        del run  # what the work held must not live until the next one comes
