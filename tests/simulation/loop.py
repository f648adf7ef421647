"""An event loop on virtual time for the shipped code of one process, without a selector and without threads.

Callbacks that are ready wait for the loop's next turn, which comes after a moment that the seed draws, as it would on a
machine that has other work, too. Results of threads arrive a moment later, in the order in which they were sent. All of
it belongs to the process: it is dropped when that is killed, and waits while that is paused.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")

TURN_US_MAX = 30
TOLD_US_MAX = 200


class VirtualLoop:
    """See the module: as much of `asyncio.AbstractEventLoop` as the shipped code uses.

    An exception of a callback ends the run: it is not logged and ignored.
    """

    def __init__(self, process: Process) -> None:
        self.process = process
        self._clock = process.world.clock
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_is_due = False
        self._told_us = 0

    @property
    def as_loop(self) -> asyncio.AbstractEventLoop:
        """This object, with the type of its use."""
        return cast("asyncio.AbstractEventLoop", self)

    # ------------------------------------------------------------------------------------------ time

    def time(self) -> float:
        return self.process.monotonic_us / 1_000_000

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self.as_loop, context)
        delay_us = max(0, math.ceil(when * 1_000_000) - self.process.monotonic_us)
        self.process.after(delay_us, lambda: self._run(timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    # ------------------------------------------------------------------------------------------ callbacks

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        self._ready.append(handle)
        if not self._turn_is_due:
            self._turn_is_due = True
            self.process.after(self._clock.random.randint(1, TURN_US_MAX), self._turn)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Take the result of a worker. An unexpected exception ends the run here, not as a failed disk.

        Raises:
            BaseException: the bug.
        """
        for one in args:
            if isinstance(one, BaseException) and not isinstance(one, ProtocolError):
                raise one
        handle = asyncio.Handle(callback, args, self.as_loop, context)
        now_us = self._clock.now_us
        self._told_us = max(self._told_us, now_us + self._clock.random.randint(1, TOLD_US_MAX))
        self.process.after(self._told_us - now_us, lambda: self._run(handle))
        return handle

    def _turn(self) -> None:
        """Run the ready callbacks; those that become ready meanwhile wait for the next turn."""
        self._turn_is_due = False
        ready, self._ready = self._ready, deque()
        for handle in ready:
            self._run(handle)

    def _run(self, handle: asyncio.Handle) -> None:
        if not (handle.cancelled() or self.process.dead):
            handle._run()

    # ------------------------------------------------------------------------------------------ futures

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self.as_loop)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self.as_loop, name=name, context=context)

    # ------------------------------------------------------------------------------------------ what asyncio asks

    def is_closed(self) -> bool:
        return self.process.dead

    def is_running(self) -> bool:
        return not self.process.dead

    def get_debug(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Pass a callback's exception to the world.

        A task without a callback died with its process.
        """
        if "handle" in context:
            raise context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a timer that was cancelled does nothing when its time comes."""
