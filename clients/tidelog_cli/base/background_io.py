"""Blocking reads and writes on daemon threads, which the end of the command does not wait for.

A read of standard input or a write to a pipe may block forever. On its own daemon thread it does not block the event
loop, so the connection stays alive and Ctrl-C ends the command at once. Rejected: `asyncio.to_thread`, whose threads
are joined when the loop closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

_ItemT = TypeVar("_ItemT")
_ResultT = TypeVar("_ResultT")

DEPTH: Final = 4
"""Default number of items that are read before the consumer takes them, which bounds memory."""


@dataclass(frozen=True, slots=True)
class _End:
    error: Exception | None


async def in_background(source: Iterable[_ItemT], depth: int = DEPTH) -> AsyncGenerator[_ItemT, None]:
    """Yield the items of `source`, read on a thread, at most `depth` ahead; raise its exceptions."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[_ItemT | _End] = asyncio.Queue()
    free = threading.Semaphore(depth)
    abandoned = threading.Event()

    def hand_over(item: _ItemT | _End) -> None:
        # The loop is closed if the consumer has ended; the item is dropped.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        error: Exception | None = None
        try:
            for item in source:
                free.acquire()
                if abandoned.is_set():
                    return
                hand_over(item)
        except Exception as raised:  # noqa: BLE001 - raised by the consumer
            error = raised
        hand_over(_End(error))

    threading.Thread(target=read, name="tidelog-read", daemon=True).start()
    try:
        while not isinstance(item := await queue.get(), _End):
            yield item
            free.release()
        if item.error is not None:
            raise item.error
    finally:
        abandoned.set()
        free.release()


async def call_in_background(work: Callable[[], _ResultT]) -> _ResultT:
    """Return the result of `work`, which runs on a thread that is abandoned if the caller is cancelled."""
    async with contextlib.aclosing(in_background(_called(work))) as results:
        return await anext(results)


def _called(work: Callable[[], _ResultT]) -> Iterable[_ResultT]:
    yield work()
