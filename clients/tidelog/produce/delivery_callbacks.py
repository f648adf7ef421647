"""Delivery callbacks (`on_delivery`), called on the event loop in slices, so that other tasks run in between.

An exception of a callback goes to the loop's exception handler, and the remaining callbacks are still called. The
buffer memory of a chunk is released after its callbacks were called, so slow callbacks slow down the producer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from tidelog.base.plain_callbacks import coroutine_error, discard_coroutine
from tidelog.produce.batches import Chunk, Delivery
from tidelog.produce.expiry import copy_of_error

SLICE: Final = 500
"""Maximum number of callbacks that are called in one iteration of the loop."""


class DeliveryCallbacks:
    """Calls the delivery callbacks of one producer.

    Args:
        called: called with each chunk after its callbacks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, called: Callable[[Chunk], None]) -> None:
        self._loop = loop
        self._called = called
        self._due: deque[Chunk] = deque()
        self._at = 0
        """Number of callbacks of the first chunk that were called."""
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []

    def add(self, chunk: Chunk) -> None:
        """Schedule the callbacks of a settled chunk, after those that are pending."""
        self._due.append(chunk)
        self._schedule()

    async def all_called(self) -> None:
        """Wait until no callback is pending."""
        while self._due:
            idle: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(idle)
            await idle

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        left = SLICE
        while self._due and left > 0:
            chunk = self._due[0]
            callbacks, begin = chunk.callbacks, self._at
            end = self._at = min(len(callbacks), begin + left)
            left -= end - begin
            self._call(chunk, begin, end)
            if end == len(callbacks):
                self._due.popleft()
                self._at = 0
                chunk.callbacks = []
                self._called(chunk)
        if self._due:
            self._schedule()
            return
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    def _call(self, delivery: Delivery, begin: int, end: int) -> None:
        error = delivery.error
        for at, callback in enumerate(delivery.callbacks[begin:end], begin):
            if callback is None:
                continue
            receipt = None if error is not None else delivery.receipt(at)
            try:
                returned = callback(receipt, error and copy_of_error(error))
                if returned is not None and discard_coroutine(returned):
                    raise coroutine_error("on_delivery", callback)  # noqa: TRY301 - handled like an error of the callback
            except Exception as raised:  # noqa: BLE001 - user code may raise anything
                self._loop.call_exception_handler(
                    {"message": f"the on_delivery callback {callback!r} raised an exception", "exception": raised},
                )
            # SystemExit stops the loop; a blocking client runs the loop again, which calls the remaining callbacks.
            except BaseException:
                self._at = at + 1
                self._schedule()
                raise
