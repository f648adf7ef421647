"""Calls users back about their records: once a record, on the event loop, in slices, so that others get their turn.

What a callback raises goes to the loop's exception handler, and the others are called all the same. A load's room in
the producer's buffer is given back only when its callbacks were called, so slow ones hold up what comes in.
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
"""So many callbacks are called in one turn of the loop."""


class DeliveryCallbacks:
    """The callbacks of one producer that are due.

    Args:
        loop: where they are called.
        called: is told of each load whose callbacks were called.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, called: Callable[[Chunk], None]) -> None:
        self._loop = loop
        self._called = called
        self._due: deque[Chunk] = deque()
        self._at = 0
        """How many of the first load's callbacks were called."""
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []

    def add(self, chunk: Chunk) -> None:
        """Call back about the records of a load that has an outcome, after what is due already."""
        self._due.append(chunk)
        self._schedule()

    async def all_called(self) -> None:
        """Wait until nothing is due."""
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
            callbacks, begin = chunk.delivery.callbacks, self._at
            end = self._at = min(len(callbacks), begin + left)
            left -= end - begin
            self._call(chunk.delivery, begin, end)
            if end == len(callbacks):
                self._due.popleft()
                self._at = 0
                chunk.delivery.callbacks = []
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
                    raise coroutine_error("on_delivery", callback)  # noqa: TRY301 - told as what it raised itself
            except Exception as raised:  # noqa: BLE001 - the user's code may raise whatever it likes
                self._loop.call_exception_handler(
                    {"message": f"on_delivery {callback!r} raised", "exception": raised},
                )
            except BaseException:  # ends the loop, which may be run again, as that of a blocking client is
                self._at = at + 1
                self._schedule()
                raise
