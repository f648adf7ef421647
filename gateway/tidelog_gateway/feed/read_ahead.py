"""Accounting of the batches that one subscription has read ahead of its client, within its credit and the budget.

A subscription starts to read without a reservation, because thousands of subscriptions may be idle at the ends of their
logs. Arriving batches are counted, and dropped if they exceed the budget (`admit`). Reading then restarts at the
client's position after `begin` has reserved as many bytes as were dropped, so that the first batches are kept and
reading makes progress. No subscription waits for the budget while it holds a reservation, which excludes deadlocks.

Batches that arrive together share one buffer, which is freed with the last of these batches. They are counted together
until then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.protocol.ws_protocol import Allowance
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.limits import MIB

AHEAD_BYTES: Final = 1 * MIB
"""Maximum number of bytes that a node may send ahead; the last batch may exceed it."""


class Window(NamedTuple):
    """Limits of the records and bytes that a node may send ahead; sent to the node when reading begins."""

    records: int
    bytes: int

    def is_much_more_than(self, other: Window) -> bool:
        """Return whether reading should restart with this window, because it is much larger than the one in use."""
        return self.records >= 4 * other.records or self.bytes >= 4 * other.bytes


class ReadAhead:
    """Counts the batches that one subscription has read ahead, in its connection's share of the response budget.

    Attributes:
        refused: whether a batch was dropped since reading began.
        reserved_bytes: reserved for the next batches.
    """

    def __init__(self, outlet: ConnectionOutput) -> None:
        self.refused = False
        self._outlet = outlet
        self._held_bytes = 0
        self.reserved_bytes = 0
        self._wanted_bytes = 0
        self._arrived_bytes: deque[int] = deque()
        """Sizes of shared buffers with unsent batches, in order of arrival."""
        self._sent_bytes = 0
        """Sent bytes of the first of these buffers."""

    def window(self, credit: Allowance) -> Window:
        """Return the flow-control window for a credit above zero."""
        return Window(max(1, credit.records), max(1, min(AHEAD_BYTES, credit.bytes)))

    async def begin(self) -> None:
        """Wait for memory for the batches that were dropped, if any, and reserve it; called before reading begins."""
        self.refused = False
        if self._wanted_bytes:
            wanted_bytes, self._wanted_bytes = self._wanted_bytes, 0
            await self._outlet.wait_for_prefetch(wanted_bytes)
            self.reserved_bytes = wanted_bytes

    def end(self) -> None:
        """Release everything; unsent batches are dropped."""
        size_bytes = self._held_bytes + self.reserved_bytes
        self._held_bytes = self.reserved_bytes = self._sent_bytes = 0
        self._arrived_bytes.clear()
        self._outlet.give_back_prefetch(size_bytes)

    def admit(self, size_bytes: int) -> bool:
        """Count batches that arrived together; False if they have to be dropped."""
        if not self._hold(size_bytes, size_bytes):
            return False
        self._arrived_bytes.append(size_bytes)
        return True

    def decode(self, batch: RecordBatch) -> bool:
        """Count the decoded size of a compressed batch; False if the batch has to be dropped."""
        extra_bytes = _decoded_bytes(batch)
        return not extra_bytes or self._hold(extra_bytes, self._arrived_bytes[0] + extra_bytes)

    def done(self, batch: RecordBatch, *, decoded: bool = True) -> None:
        """Release the bytes of a sent batch, and what is left of the reservation.

        Batches are sent in the order in which they arrived.

        Args:
            batch: the batch.
            decoded: whether `decode` has counted the decoded size of the batch.
        """
        size_bytes = (_decoded_bytes(batch) if decoded else 0) + self._free(batch.header.length)
        self._held_bytes -= size_bytes
        self._outlet.give_back_prefetch(size_bytes + self.reserved_bytes)
        self.reserved_bytes = 0

    def passed(self) -> None:
        """Release the reservation for a batch that was sent within the call that received it, and was never counted."""
        self._outlet.give_back_prefetch(self.reserved_bytes)
        self.reserved_bytes = 0

    def dropped(self, size_bytes: int) -> None:
        """Release the bytes of batches that will not be sent."""
        size_bytes = self._free(size_bytes)
        self._held_bytes -= size_bytes
        self._outlet.give_back_prefetch(size_bytes)

    def _free(self, size_bytes: int) -> int:
        """Add to the sent bytes, and return the size of the buffers that are freed."""
        self._sent_bytes += size_bytes
        freed_bytes = 0
        while self._arrived_bytes and self._sent_bytes >= self._arrived_bytes[0]:
            together_bytes = self._arrived_bytes.popleft()
            self._sent_bytes -= together_bytes
            freed_bytes += together_bytes
        return freed_bytes

    @contextlib.contextmanager
    def idle(self, give_way: Callable[[], None]) -> Iterator[None]:
        """Let the budget reclaim the held bytes while the block runs; `give_way` must end the block and the reading."""

        def let_go() -> int:
            size_bytes = self._held_bytes + self.reserved_bytes
            if size_bytes:
                give_way()
            return size_bytes

        with self._outlet.idle(self, let_go):
            yield

    def _hold(self, size_bytes: int, wanted_bytes: int) -> bool:
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0 and not self._outlet.take_prefetch(missing_bytes):
            self.refused = True
            self._wanted_bytes = wanted_bytes
            return False
        self.reserved_bytes = max(0, -missing_bytes)
        self._held_bytes += size_bytes
        return True


def _decoded_bytes(batch: RecordBatch) -> int:
    return 0 if batch.header.codec is Codec.NONE else batch.header.uncompressed_length
