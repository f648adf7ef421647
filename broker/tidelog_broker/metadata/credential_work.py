"""CPU work of authentication, on a thread of its own and with fair queueing by client address.

Any client can present wrong credentials at any rate, so the number of waiting callers is limited, and addresses take
turns. If the queue is full, a caller of the address with the most waiting callers is replaced by one of another
address: a flood from one address neither excludes nor long delays callers of other addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.flow.fair_slots import FairSlots, FullError, SlotBounds

P = ParamSpec("P")
T = TypeVar("T")

WORK_MAX: Final = 64
"""Maximum number of callers that wait or whose call was submitted to the thread: about half a second of slow hashes."""
_HANDED_OVER: Final = 2
"""Number of calls submitted to the thread at a time, so that it never waits for the next one."""


class CredentialWork:
    """Runs credential checks on one worker thread, queued fairly by client address."""

    def __init__(self, workers: Offload) -> None:
        self._workers = workers
        self._slots = FairSlots(SlotBounds(_HANDED_OVER, waiting_max=WORK_MAX - _HANDED_OVER))

    async def call(self, address: str, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function for a caller from an address (see `counted_address`) and return its result.

        Raises:
            ProtocolError: OVERLOADED, too many callers wait.
            Exception: the function's error.
        """
        try:
            await self._slots.take(address)
        except FullError:
            what = "too many callers are being authenticated by this node; retry later"
            raise ProtocolError(pb.OVERLOADED, what, retry_after_ms=500) from None
        working = asyncio.ensure_future(self._workers.call(0, work, *args, **kwargs))

        def worked(done: asyncio.Future[Any]) -> None:
            if not done.cancelled():
                done.exception()  # Retrieved here in case the caller was cancelled.
            self._slots.give_back(address)

        working.add_done_callback(worked)
        # The thread finishes the function even if its caller is cancelled; its slot is not free before that.
        return await asyncio.shield(working)
