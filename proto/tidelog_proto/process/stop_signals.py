"""Handlers of the signals that stop a process gracefully, which stay until the process has ended.

An event loop restores the default action of its signals when it is closed, some time before the process ends. A second
SIGINT or SIGTERM would then kill a process that has stopped in order, and its exit code would report a failure. So the
handlers here belong to the process and not to the loop, and `ignore_stop_signals` replaces them for the end of the
interpreter, which restores the default action of all signals that are not ignored.
"""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

_WAKE_BYTES: Final = 4096

_kept: set[int] = set()
"""The signals whose handlers stay after `stop_on_signals`."""


@contextlib.contextmanager
def stop_on_signals(numbers: Iterable[int], stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` with the number of each of these signals, in the running event loop of the main thread.

    If a signal has arrived in the block, the handlers stay after it, so that further signals do not kill the process;
    otherwise the earlier handlers are restored.
    """
    import asyncio  # noqa: PLC0415 - a command without an event loop starts faster

    loop = asyncio.get_running_loop()
    arrived: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)
        with contextlib.suppress(RuntimeError):  # The loop is closed: the process ends already.
            loop.call_soon_threadsafe(stop, number)

    with _woken_by_signals(loop):
        before = {number: signal.signal(number, on_signal) for number in numbers}
        try:
            yield
        finally:
            if arrived:
                _kept.update(before)
            else:
                for number, handler in before.items():
                    signal.signal(number, handler)


def keep(numbers: Iterable[int]) -> None:
    """Note that the process has handlers of these signals, which `ignore_stop_signals` is to replace."""
    _kept.update(numbers)


def ignore_stop_signals(*more: int) -> None:
    """Ignore the signals whose handlers were kept, and `more`, until the process has ended; in the main thread."""
    for number in _kept.union(more):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _woken_by_signals(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let signals wake the loop during the block; uvloop does so by itself, asyncio only for handlers of its own."""
    current = signal.set_wakeup_fd(-1)
    if current != -1:
        signal.set_wakeup_fd(current, warn_on_full_buffer=False)
        yield
        return
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        loop.add_reader(reading, reading.recv, _WAKE_BYTES)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            loop.remove_reader(reading)
