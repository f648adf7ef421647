"""CPU work of authentication, on a thread of its own and with fair queueing by client address.

Any client can present wrong credentials at any rate, so the number of waiting callers is limited, and addresses take
turns. If the queue is full, a caller of the address with the most waiting callers is replaced by one of another
address: a flood from one address neither excludes nor long delays callers of other addresses.
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
"""Limit of waiting callers: about half a second of slow hashes."""
_HANDED_OVER: Final = 2
"""Number of calls submitted to the thread at a time, so that it never waits for the next one."""


class CredentialWork:
    """A fair queue for one worker thread.

    Args:
        workers: the thread.
    """

    def __init__(self, workers: Offload) -> None:
        self._workers = workers
        self._handed_over = 0
        self._waiting = 0
        self._turns: dict[str, deque[asyncio.Future[None]]] = {}
        """Waiting callers by address, in the order of the addresses' turns."""

    async def call(self, address: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function for a caller from an address (see `counted_address`) and return its result.

        Raises:
            ProtocolError: OVERLOADED, too many callers wait.
            Exception: the function's error.
        """
        await self._turn(address)
        working = asyncio.ensure_future(self._workers.call(0, work, *args, **kwargs))
        working.add_done_callback(self._worked)
        # The thread finishes the function even if its caller is cancelled, and the next turn starts after that.
        return await asyncio.shield(working)

    def _worked(self, working: asyncio.Future[Any]) -> None:
        if not working.cancelled():
            working.exception()  # retrieved here in case the caller was cancelled
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
        except asyncio.CancelledError:  # the caller may have been cancelled after its turn began
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._pass_on()
            raise
        finally:
            self._waiting -= 1

    def _make_room(self, address: str) -> None:
        """Refuse the last waiting caller of the address that has most.

        Raises:
            ProtocolError: OVERLOADED, the new caller has this address.
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
                self._turns[address] = turns  # the address goes to the end of the queue
            if not turn.done():
                turn.set_result(None)
                return
        self._handed_over -= 1


def _too_many() -> ProtocolError:
    return ProtocolError(pb.OVERLOADED, "too many callers are being authenticated; retry", retry_after_ms=500)
