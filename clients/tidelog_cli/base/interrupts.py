"""Ctrl-C in the moments when Python would print a traceback for it.

Importing everything takes a moment, and an interrupt in that moment would print a traceback out of somebody's import.
So until everything is loaded it ends the process as the system does it, without a word. Who ignores interrupts
(`nohup`) still does.

An event loop that is being made or closed is another such moment: a KeyboardInterrupt between two lines of asyncio
leaves half a loop, whose destructor complains on stderr. A command that makes a loop again and again
(`tidelog sql --follow`) meets it. So an interrupt is noted there, and raised when the loop is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

_ResultT = TypeVar("_ResultT")


def interrupts_end_quietly() -> AbstractContextManager[None]:
    """Let an interrupt end the process at once, with no traceback; afterwards it is a KeyboardInterrupt again."""
    return _interrupts_go_to(signal.SIG_DFL)


def run_interruptibly(work: Callable[[], Awaitable[_ResultT]]) -> _ResultT:
    """Do `work` in an event loop of its own; Ctrl-C cancels it at whatever moment it comes, and it may still clean up.

    A second Ctrl-C does not wait for the cleaning up.

    Raises:
        KeyboardInterrupt: there was an interrupt; the loop is closed.
        Exception: whatever `work` raises.
    """
    interrupt = _Interrupt()

    async def main() -> _ResultT:
        interrupt.cancels(asyncio.current_task())
        await asyncio.sleep(0)  # an interrupt from before the task began ends it here
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
    """Whether an interrupt came, and the task that it cancels."""

    def __init__(self) -> None:
        self.came = False
        self._task: asyncio.Task[Any] | None = None

    def cancels(self, task: asyncio.Task[Any] | None) -> None:
        """Have the interrupt that comes, or came, cancel this task."""
        self._task = task
        if self.came:
            self._cancel()

    def on_signal(self, _number: int, _frame: object) -> None:
        """Note the first interrupt, raise the second one."""
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            self._task.get_loop().call_soon_threadsafe(lambda: None)  # a loop that waits for its sockets wakes up


@contextlib.contextmanager
def _interrupts_go_to(handler: Callable[[int, object], None] | signal.Handlers) -> Iterator[None]:
    """Have `handler` take interrupts; where somebody else does, or in a thread, which gets none: change nothing."""
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
