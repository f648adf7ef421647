"""The event loop of a whole node: `tests.simulation.loop` with work in the node's own threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from inspect import CORO_CREATED, getcoroutinestate
from types import CoroutineType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from tests.broker.storage.sim_disk import PowerCutError
from tests.simulation.loop import TOLD_US_MAX, VirtualLoop
from tests.simulation.workers import SimWorkers

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.whole.node_process import NodeProcess

P = ParamSpec("P")
T = TypeVar("T")


class WholeLoop(VirtualLoop):
    """See the module."""

    def __init__(self, process: NodeProcess) -> None:
        super().__init__(cast("Process", process))
        self.node_process = process
        self._coroutines: dict[asyncio.Task[Any], Coroutine[Any, Any, Any]] = {}

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        if self.node_process.dead:  # a coroutine that is thrown away, whenever that is: it draws nothing from the seed
            return asyncio.Handle(callback, args, self.as_loop, context)
        return super().call_soon(callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Take the result of a thread. The waiting task gets its exception, and decides about it."""
        wrong = [one for one in args if isinstance(one, PowerCutError)]
        if wrong:
            raise wrong[0]
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        now_us = self._clock.now_us
        self._told_us = max(self._told_us, now_us + self._clock.random.randint(1, TOLD_US_MAX))
        self.node_process.after(self._told_us - now_us, lambda: self._run(handle))
        return handle

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        if self.node_process.dead:  # the coroutine was discarded, so its next work does not begin
            coro.close()
        task = super().create_task(coro, name=name, context=context)
        self._coroutines[task] = coro
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._coroutines.pop(task, None)

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Do a piece of work on a thread: in no order with any other."""
        future = self.create_future()

        def set_result(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def set_exception(error: BaseException) -> None:
            if not future.done():
                future.set_exception(error)

        def work() -> None:
            try:
                result = func(*args)
            except PowerCutError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
                self.call_soon_threadsafe(set_exception, error)
            else:
                self.call_soon_threadsafe(set_result, result)

        self.node_process.after(self.node_process.write_us(), work)
        return future

    def forget(self) -> None:
        """The process is dead: nothing that has not begun will."""
        for coroutine in self._coroutines.values():
            if getcoroutinestate(coroutine) == CORO_CREATED:
                work = _locals(coroutine).get("work")
                if work is not None:  # a handler's, around which a task of the server's was to begin
                    work.close()
                coroutine.close()
        self._coroutines.clear()


class WholeWorkers(SimWorkers):
    """I/O workers in place of `storage.io.workers.IoWorkers`, of the process that makes them. They have no niceness."""

    def __init__(self, count: int, *, name: str, niceness: int = 0) -> None:
        process = process_here()
        super().__init__(cast("Process", process), count, process.read_us if name == "read" else process.write_us)
        self._node_process = process

    def submit(self, key: int, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = fn(*args, **kwargs)
            except PowerCutError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to who waits
                future.set_exception(error)
            else:
                future.set_result(result)

        self.post(key, run)
        return future

    def offer(self, run: Callable[[], None], *, key: int = 0) -> bool:
        """Take a head start: it is done in its turn, or not at all."""
        if self._node_process.world.clock.random.random() < 0.5:
            return False
        self.post(key, run)
        return True

    def close(self) -> None:
        """Nothing runs here after its process."""


def _locals(coroutine: Coroutine[Any, Any, Any]) -> dict[str, Any]:
    assert isinstance(coroutine, CoroutineType)
    frame = coroutine.cr_frame
    return {} if frame is None else dict(frame.f_locals)


class Ordered(dict[Any, None]):
    """A set of callbacks that are called in the order in which they came, whatever their addresses in memory."""

    def add(self, one: object) -> None:
        self[one] = None

    def discard(self, one: object) -> None:
        self.pop(one, None)


def process_here() -> NodeProcess:
    """Return the running process."""
    loop: object = asyncio.get_running_loop()
    assert isinstance(loop, WholeLoop)
    return loop.node_process
