"""What one subscription reads ahead of its client: never more than it has credit for, and within the budget.

A subscription begins to read with nothing reserved, as thousands of them may lie idle at the ends of their logs. What
arrives is counted, and dropped when there is no room (`admit`); reading then ends, and begins again at the position of
the client when there is. This time room is taken first (`begin`), for as much as was dropped: what comes first is kept
then, so reading goes on, and nobody waits for room while he holds some.

Batches that arrive together lie in one piece of memory, which lives as long as the last of them is not sent. So they
are counted together until then.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.websocket.ws_protocol import Allowance
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.limits import MIB

AHEAD_BYTES: Final = 1 * MIB
"""The most that a node may send ahead; it sends whole batches, and so up to one more."""


class Window(NamedTuple):
    """How far ahead a node may send, as it is told when reading begins."""

    records: int
    bytes: int

    def is_much_more_than(self, other: Window) -> bool:
        """Whether reading should begin again with this one."""
        return self.records >= 4 * other.records or self.bytes >= 4 * other.bytes


class ReadAhead:
    """The budget's part of one subscription.

    Attributes:
        refused: something had to be dropped since reading began.
    """

    def __init__(self, outlet: ConnectionOutput) -> None:
        self.refused = False
        self._outlet = outlet
        self._held_bytes = 0
        self._reserved_bytes = 0
        self._wanted_bytes = 0
        self._arrived_bytes: deque[int] = deque()
        """Of what arrived together and is not sent to the end."""
        self._sent_bytes = 0
        """Of the first of them."""

    def window(self, credit: Allowance) -> Window:
        """Return the window for a client's credit, which is above zero."""
        return Window(max(1, credit.records), max(1, min(AHEAD_BYTES, credit.bytes)))

    async def begin(self) -> None:
        """Wait for the room that reading is known to need."""
        self.refused = False
        if self._wanted_bytes:
            wanted_bytes, self._wanted_bytes = self._wanted_bytes, 0
            await self._outlet.wait_for_prefetch(wanted_bytes)
            self._reserved_bytes = wanted_bytes

    def end(self) -> None:
        """Give everything back: what was read and not sent is dropped."""
        size_bytes = self._held_bytes + self._reserved_bytes
        self._held_bytes = self._reserved_bytes = self._sent_bytes = 0
        self._arrived_bytes.clear()
        self._outlet.give_back_prefetch(size_bytes)

    def admit(self, size_bytes: int) -> bool:
        """Count what arrived together, in bytes of whole batches; False when it has to be dropped."""
        if not self._hold(size_bytes, size_bytes):
            return False
        self._arrived_bytes.append(size_bytes)
        return True

    def decode(self, batch: RecordBatch) -> bool:
        """Count what decoding a batch takes beside the batch; False when it has to be dropped."""
        extra_bytes = _decoded_bytes(batch)
        return not extra_bytes or self._hold(extra_bytes, self._arrived_bytes[0] + extra_bytes)

    def done(self, batch: RecordBatch, *, decoded: bool = True) -> None:
        """Give back what a batch took that is sent, and what was taken for it and not needed.

        Batches are sent in the order in which they arrived.
        """
        size_bytes = (_decoded_bytes(batch) if decoded else 0) + self._gone(batch.header.length)
        self._held_bytes -= size_bytes
        self._outlet.give_back_prefetch(size_bytes + self._reserved_bytes)
        self._reserved_bytes = 0

    def passed(self) -> None:
        """Give back what was taken for a batch that was sent within the call that received it, and never held."""
        if self._reserved_bytes:
            self._outlet.give_back_prefetch(self._reserved_bytes)
            self._reserved_bytes = 0

    def dropped(self, size_bytes: int) -> None:
        """Count what is not going to be sent as if it had been."""
        size_bytes = self._gone(size_bytes)
        self._held_bytes -= size_bytes
        self._outlet.give_back_prefetch(size_bytes)

    def _gone(self, size_bytes: int) -> int:
        """Note that so much has gone its way; return what is not held any more."""
        self._sent_bytes += size_bytes
        freed_bytes = 0
        while self._arrived_bytes and self._sent_bytes >= self._arrived_bytes[0]:
            together_bytes = self._arrived_bytes.popleft()
            self._sent_bytes -= together_bytes
            freed_bytes += together_bytes
        return freed_bytes

    @contextlib.contextmanager
    def idle(self, give_way: Callable[[], None]) -> Iterator[None]:
        """While the block runs, what is held may be asked for; `give_way` ends the block and the reading."""

        def let_go() -> int:
            size_bytes = self._held_bytes + self._reserved_bytes
            if size_bytes:
                give_way()
            return size_bytes

        with self._outlet.idle(self, let_go):
            yield

    def _hold(self, size_bytes: int, wanted_bytes: int) -> bool:
        missing_bytes = size_bytes - self._reserved_bytes
        if missing_bytes > 0 and not self._outlet.take_prefetch(missing_bytes):
            self.refused = True
            self._wanted_bytes = wanted_bytes
            return False
        self._reserved_bytes = max(0, -missing_bytes)
        self._held_bytes += size_bytes
        return True


def _decoded_bytes(batch: RecordBatch) -> int:
    return 0 if batch.header.codec is Codec.NONE else batch.header.uncompressed_length
