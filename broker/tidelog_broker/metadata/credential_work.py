"""Work of the processor for those who show credentials: on a thread of its own, and never too much of it at a time.

Anybody may show credentials that are wrong, as fast as he likes, so those who wait for the thread are few, and
addresses take turns at it. Where as many wait as may, one of the address that has most of them goes for somebody from
elsewhere: who floods a node with wrong keys keeps nobody else out, and has nobody else wait for long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

P = ParamSpec("P")
T = TypeVar("T")

WORK_MAX: Final = 64
"""Callers who wait for it: with the slow hash about half a second's worth."""
_HANDED_OVER: Final = 2
"""Of them the thread has so many: it finds the next one when it is done with one."""


class CredentialWork:
    """See the module.

    Args:
        workers: the thread.
    """

    def __init__(self, workers: Offload) -> None:
        self._workers = workers
        self._handed_over = 0
        self._waiting = 0
        self._turns: dict[str, deque[asyncio.Future[None]]] = {}
        """Of those who wait for the thread, by address; the address whose turn it is stands first."""

    async def call(self, address: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do some work for somebody who calls from an address, as `counted_address` writes it; return what it returns.

        Raises:
            ProtocolError: OVERLOADED, too many wait for theirs.
            Exception: as the work.
        """
        await self._turn(address)
        working = asyncio.ensure_future(self._workers.call(0, work, *args, **kwargs))
        working.add_done_callback(self._worked)
        # The thread goes on with what it was given when its caller has gone, and the next one's turn comes after that.
        return await asyncio.shield(working)

    def _worked(self, working: asyncio.Future[Any]) -> None:
        if not working.cancelled():
            working.exception()  # its caller may have gone, and then nobody else asks for it
        self._pass_on()

    async def _turn(self, address: str) -> None:
        if self._handed_over < _HANDED_OVER:
            self._handed_over += 1
            return
        if self._waiting >= WORK_MAX - _HANDED_OVER:
            self._make_room(address)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(address, deque()).append(turn)
        self._waiting += 1
        try:
            await turn
        except asyncio.CancelledError:  # perhaps just as the turn came
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()
            raise
        finally:
            self._waiting -= 1

    def _make_room(self, address: str) -> None:
        """Have the last one go of the address that has most.

        Raises:
            ProtocolError: OVERLOADED, that is this address, or would be.
        """
        crowd = max(self._turns.values(), key=len)
        if len(self._turns.get(address, ())) + 1 >= len(crowd):
            raise _too_many()
        last = crowd.pop()
        if not last.done():
            last.set_exception(_too_many())

    def _pass_on(self) -> None:
        while self._turns:
            address, turns = next(iter(self._turns.items()))
            del self._turns[address]
            turn = turns.popleft()
            if turns:
                self._turns[address] = turns  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._handed_over -= 1


def _too_many() -> ProtocolError:
    return ProtocolError(pb.OVERLOADED, "too many callers are being looked at; send again", retry_after_ms=500)
