"""Handling of Ctrl-C where Python would print a traceback.

An interrupt during imports would print a traceback of an arbitrary import. So until everything is loaded, SIGINT has
its default action and ends the process silently. If it is ignored (`nohup`), it stays ignored.

A KeyboardInterrupt while an event loop is created or closed leaves a partly initialised loop, whose destructor prints
errors. Commands that create loops repeatedly (`tidelog sql --follow`) are affected most. So an interrupt is recorded
there, and raised after the loop is closed.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog_proto.process.stop_signals import ignore_stop_signals

if TYPE_CHECKING:
    import asyncio

_ResultT = TypeVar("_ResultT")


def interrupts_end_quietly() -> AbstractContextManager[None]:
    """Let SIGINT end the process at once without a traceback; restores KeyboardInterrupt on exit."""
    return _interrupts_go_to(signal.SIG_DFL)


def interrupts_change_nothing() -> None:
    """Ignore signals that stop the command until the process has ended, because its exit code is decided.

    If the user has already pressed Ctrl-C twice, SIGINT still ends the process, which may be waiting for a thread.
    """
    ignore_stop_signals(*(() if _Interrupt.is_hurried else (signal.SIGINT,)))
    if _Interrupt.is_hurried:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_interruptibly(work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
    """Run `work` in a new event loop; Ctrl-C cancels it at any time, and it may still clean up.

    A second Ctrl-C does not wait for the cleanup.

    Raises:
        KeyboardInterrupt: the work was interrupted; the loop is closed.
        Exception: as `work`.
    """
    import asyncio  # noqa: PLC0415 - a command without requests starts faster

    interrupt = _Interrupt()

    async def main() -> _ResultT:
        interrupt.cancels(asyncio.current_task())
        await asyncio.sleep(0)  # An interrupt before this line cancels the task here.
        return await work()

    with _interrupts_go_to(interrupt.on_signal):
        try:
            with asyncio.Runner() as runner:
                result = runner.run(main())
        except asyncio.CancelledError:
            if not interrupt.came:
                raise
            raise KeyboardInterrupt from None
    if interrupt.came:
        raise KeyboardInterrupt
    return result


class _Interrupt:
    """State of the interrupt, and the task that it cancels.

    Attributes:
        is_hurried: whether a second interrupt came, which does not wait for the cleanup.
    """

    is_hurried = False

    def __init__(self) -> None:
        self.came = False
        self._task: asyncio.Task[Any] | None = None

    def cancels(self, task: asyncio.Task[Any] | None) -> None:
        """Set the task that an interrupt cancels, even if the interrupt came before."""
        self._task = task
        if self.came:
            self._cancel()

    def on_signal(self, _number: int, _frame: object) -> None:
        """Record the first interrupt; raise KeyboardInterrupt for the second."""
        if self.came:
            _Interrupt.is_hurried = True
            raise KeyboardInterrupt
        self.came = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._task.get_loop().call_soon_threadsafe(lambda: None)  # wakes up the loop, which may wait for events


@contextlib.contextmanager
def _interrupts_go_to(handler: Callable[[int, object], None] | signal.Handlers) -> Iterator[None]:
    """Install a SIGINT handler; do nothing in other threads or if another handler is installed."""
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
