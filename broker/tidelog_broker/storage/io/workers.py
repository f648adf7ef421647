"""Worker threads for file I/O, so that the event loop never waits for a disk.

A key always maps to the same thread, so the work of one partition runs in the order of submission. A thread serves its
topics round robin: a topic with a thousand waiting partitions delays another topic by one task (ADR 0188). A thread is
started for its first task. Rejected: `ThreadPoolExecutor`, which has one queue for all threads and gives no order per
key.

Some work is optional and done early: preallocating space, syncing rolled segments. A caller that needs its result
before it was done does the work itself and handles the errors. Optional work is passed to `offer`, which declines it
when the queue is long, so submitted work waits for few optional tasks.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Final, ParamSpec, TypeVar

from tidelog_broker.storage.io.background_thread import lower_priority

P = ParamSpec("P")
T = TypeVar("T")

PENDING_MAX: Final = 65_536
"""Limit of queued tasks per thread, against bugs: the node's limits on bytes and batches in flight are lower."""

OPTIONAL_QUEUE_MAX: Final = 16
"""Length of a thread's queue from which `offer` declines optional work."""

_PARTITION_BITS: Final = 32

Task = Callable[[], None]


def io_key(topic: Hashable, partition: int) -> int:
    """Return the key for the work of a partition.

    The high bits identify the topic: a thread serves topics round robin. The low bits choose the thread, so that the
    partitions of a topic are spread over the threads.
    """
    share, spread = hash(topic), hash((topic, partition))
    return (share & 0x7FFFFFFF) << _PARTITION_BITS | spread & ((1 << _PARTITION_BITS) - 1)


class WorkersFullError(Exception):
    """The queue of a worker thread is full."""


class IoWorkers:
    """A fixed number of threads with a queue each.

    Args:
        niceness: above 0 for background threads (`lower_priority`).
    """

    def __init__(self, count: int = 2, *, name: str = "io", pending_max: int = PENDING_MAX, niceness: int = 0) -> None:
        assert count > 0
        self._niceness = niceness
        self._name = name
        self._pending_max = pending_max
        self._queues = [_TaskQueue() for _ in range(count)]
        self._threads: list[threading.Thread | None] = [None] * count
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, key: int, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run `fn` on the thread of `key`, after all work submitted with this key before; return the result's future.

        Raises:
            WorkersFullError: the queue is full.
            RuntimeError: the workers are closed.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 (any exception belongs to the future's consumer)
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(key, run)
        return future

    def post(self, key: int, run: Callable[[], None]) -> None:
        """Queue `run`, which must not raise, like `submit` but without a future: for the hot path.

        Raises:
            WorkersFullError, RuntimeError: as `submit`.
        """
        number = key % len(self._queues)
        work = self._queues[number]
        if work.length >= self._pending_max:
            raise WorkersFullError(
                f"a thread of the workers {self._name!r} has reached its limit of {self._pending_max} queued tasks; "
                "try again later"
            )
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the workers {self._name!r} are closed")
            if self._threads[number] is None:
                thread = threading.Thread(
                    target=_run, args=(work, self._niceness), name=f"tidelog-{self._name}-{number}", daemon=True
                )
                self._threads[number] = thread
                thread.start()
            work.added.put((key >> _PARTITION_BITS, run))

    def offer(self, run: Callable[[], None], *, key: int = 0) -> bool:
        """Submit optional work; return False if it was declined."""
        if self._queues[key % len(self._queues)].length >= OPTIONAL_QUEUE_MAX:
            return False
        try:
            self.post(key, run)
        except (WorkersFullError, RuntimeError):
            return False
        return True

    def close(self) -> None:
        """Refuse new work, finish submitted work, and join the threads."""
        with self._lock:
            self._closed = True
            threads = [thread for thread in self._threads if thread is not None]
            for work in self._queues:
                work.added.put(None)
        for thread in threads:
            thread.join()


class _TaskQueue:
    """The tasks of one thread. Other threads add them; only the thread itself takes them.

    The thread moves added tasks to its own table without a lock, so adding costs as much as for a plain queue.
    """

    def __init__(self) -> None:
        self.added: queue.SimpleQueue[tuple[int, Task] | None] = queue.SimpleQueue()
        """Tasks, each with its share, which is the high bits of its key; None ends the queue."""
        self._shares: OrderedDict[int, deque[Task]] = OrderedDict()
        """Waiting tasks by share, in round-robin order: the share to be served next first. Oldest task first."""
        self._waiting = 0
        self._has_ended = False

    @property
    def length(self) -> int:
        """The number of waiting tasks; it may lack a task that the thread is moving to its table."""
        return self.added.qsize() + self._waiting

    def take(self) -> Task | None:
        """Wait for the next task, of the next share round robin; return None once the queue has ended and is empty."""
        added = self.added
        if not self._shares and not self._has_ended:
            first = added.get()
            if first is not None and added.empty():
                return first[1]  # No other task waits.
            self._move(first)
        while not added.empty():  # Only this thread takes from `added`, so `get` does not wait.
            self._move(added.get())
        if not self._shares:
            return None
        share, tasks = next(iter(self._shares.items()))
        task = tasks.popleft()
        if tasks:
            self._shares.move_to_end(share)
        else:
            del self._shares[share]
        self._waiting -= 1
        return task

    def _move(self, added: tuple[int, Task] | None) -> None:
        if added is None:
            self._has_ended = True
            return
        share, task = added
        tasks = self._shares.get(share)
        if tasks is None:
            tasks = self._shares[share] = deque()
        self._waiting += 1
        tasks.append(task)


def _run(work: _TaskQueue, niceness: int) -> None:
    if niceness:
        lower_priority(niceness)
    while (run := work.take()) is not None:
        run()
        del run  # Release the work's objects before waiting for the next.
