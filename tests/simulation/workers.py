"""The I/O workers of a simulated node: what `storage.io.workers` does with threads, on the virtual clock.

A piece of work has three moments: it begins, it is on the disk, its end reaches the event loop. The process can be
killed, or lose power, between any two of them. Work with one key is done in order, as by the thread of that key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.process import Process

P = ParamSpec("P")
T = TypeVar("T")


class SimWorkers:
    """See the module; an `offload.Workers`.

    Args:
        process: the process that owns them.
        count: how many.
        takes_us: draws how long a piece of work takes.
    """

    def __init__(self, process: Process, count: int, takes_us: Callable[[], int]) -> None:
        self._process = process
        self._takes_us = takes_us
        self._queues: list[deque[Callable[[], None]]] = [deque() for _ in range(count)]

    def post(self, key: int, run: Callable[[], None]) -> None:
        """Do `run` after everything that came with the key before."""
        queue = self._queues[key % len(self._queues)]
        queue.append(run)
        if len(queue) == 1:
            self._begin(queue)

    def submit(self, key: int, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn`, as `post`, and return its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except (ProtocolError, FileNotFoundError) as error:  # anything else is a finding
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(key, run)
        return future

    def _begin(self, queue: deque[Callable[[], None]]) -> None:
        self._process.after(self._takes_us(), lambda: self._do(queue))

    def _do(self, queue: deque[Callable[[], None]]) -> None:
        queue[0]()
        queue.popleft()
        if queue:
            self._begin(queue)


class SimHeadStarts(IoWorkers):
    """The thread for background work, as a worker of its own."""

    def __init__(self, workers: SimWorkers) -> None:
        super().__init__(1, name="simulated")
        self._workers = workers

    def offer(self, run: Callable[[], None], *, key: int = 0) -> bool:
        self._workers.post(key, run)
        return True
