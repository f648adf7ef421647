"""Receipts of the blocking client: waited for with `result` instead of `await`."""

from __future__ import annotations

from tidelog import receipts as asynchronous_receipts
from tidelog.gathering import Gathering
from tidelog.loop_thread import LoopThread
from tidelog.model import Receipt
from tidelog.receipts import Receipts


class PendingReceipt:
    """See `tidelog.PendingReceipt`: a record that is accepted and on its way."""

    __slots__ = ("_gathering", "_index", "_thread")

    def __init__(self, thread: LoopThread, gathering: Gathering, index: int) -> None:
        self._thread = thread
        self._gathering = gathering
        self._index = index

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return asynchronous_receipts.PendingReceipt(self._gathering, self._index).done()

    def result(self, timeout_s: float | None = None) -> Receipt:
        """Wait for the acknowledgement.

        Raises:
            TidelogError: the record was not acknowledged.
            TimeoutError: not yet.
        """
        pending = asynchronous_receipts.PendingReceipt(self._gathering, self._index)

        async def wait() -> Receipt:
            return await pending

        return self._thread.run(wait, timeout_s=timeout_s)


class PendingReceipts:
    """See `tidelog.PendingReceipts`: many records that are accepted and on their way."""

    def __init__(self, thread: LoopThread, pending: asynchronous_receipts.PendingReceipts) -> None:
        self._thread = thread
        self._pending = pending

    def done(self) -> bool:
        """Whether `result` would not wait."""
        return self._pending.done()

    def result(self, timeout_s: float | None = None) -> Receipts:
        """Wait for the acknowledgements.

        Raises:
            TidelogError: not all of the records were acknowledged; a note says how many were.
            TimeoutError: not yet.
        """

        async def wait() -> Receipts:
            return await self._pending

        return self._thread.run(wait, timeout_s=timeout_s)
