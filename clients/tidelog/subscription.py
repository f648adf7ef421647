"""One SUBSCRIBE on one connection: what it may still send, and what became of what it sent. No I/O of its own.

The node sends whole batches as long as it has credit; credit goes back as the user takes batches, in steps of half the
window, so the pipe never runs dry and a user who stops reading stops the node after one window. Where an event begins
before the position that is wanted (a batch is sent whole) it is trimmed here; what comes twice is dropped here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.errors import BadReplyError, TidelogError, error_of, error_of_local
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.frames import Frame
from tidelog_proto.header import BatchHeader, Flags

REFILL_SHARE: Final = 0.5
_SPAN_MAX: Final = 2**32
"""How many offsets a batch covers at most."""


@dataclass(frozen=True, slots=True)
class Credit:
    """What one event cost, to be given back when it is consumed."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Prefetched:
    """A batch that waits for the user. `credit` is due when it is taken: the event's, on its last batch.

    `high_watermark` is the partition's end, as the node knew it when it sent the event.
    """

    partition: int
    batch: RecordBatch
    subscription: Subscription
    credit: Credit | None
    high_watermark: int = 0


class Listener(Protocol):
    """The consumer, as its subscriptions see it."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""

    def detached(self, subscription: Subscription, partitions: list[int], error: TidelogError) -> None:
        """Partitions are no longer served by a subscription."""

    def broken(self, error: TidelogError) -> None:
        """The node sent something that no reader can go on from."""


class Subscription:
    """The positions and credits of one subscription.

    Args:
        topic_id: 16 bytes.
        positions: partition -> next offset wanted.
        credit: the window.
        send_credit: sends a CREDIT.
        listener: gets what arrives.
        filtered: whether only some records are wanted, so that those between are left out.
    """

    def __init__(
        self,
        topic_id: bytes,
        positions: dict[int, int],
        credit: Credit,
        send_credit: Callable[[Credit], None],
        listener: Listener,
        *,
        filtered: bool = False,
    ) -> None:
        self.positions = positions
        self._topic_id = topic_id
        self._window = credit
        self._send_credit = send_credit
        self._listener = listener
        self._filtered = filtered
        self._returned_records = 0
        self._returned_bytes = 0

    def pushed(self, frame: Frame) -> None:
        """Take a MESSAGE_EVENT or SUBSCRIPTION_ENDED."""
        if frame.envelope.WhichOneof("kind") == "subscription_ended":
            ended = frame.envelope.subscription_ended
            self.end(ended.partition, error_of(ended.error))
            return
        event = frame.envelope.message_event
        credit = Credit(event.record_count, len(frame.attachment))
        try:
            batches = self._accept(event, frame.attachment)
        except TidelogError as error:
            self._listener.broken(error)
            return
        if not batches:
            self.give_back(credit)
            return
        last = len(batches) - 1
        self._listener.prefetched(
            [
                Prefetched(event.partition, batch, self, credit if index == last else None, event.high_watermark)
                for index, batch in enumerate(batches)
            ]
        )

    def connection_lost(self, error: TidelogError) -> None:
        """The connection is gone, and the subscription with it."""
        partitions = list(self.positions)
        if partitions:
            self._listener.detached(self, partitions, error)

    def end(self, partition: int, error: TidelogError) -> None:
        """One partition is no longer served."""
        if partition in self.positions:
            self._listener.detached(self, [partition], error)

    def give_back(self, credit: Credit) -> None:
        """Return credit for something that is consumed; it is sent in steps of half the window."""
        self._returned_records += credit.records
        self._returned_bytes += credit.bytes
        if (
            self._returned_records >= self._window.records * REFILL_SHARE
            or self._returned_bytes >= self._window.bytes * REFILL_SHARE
        ):
            self._send_credit(Credit(self._returned_records, self._returned_bytes))
            self._returned_records = self._returned_bytes = 0

    def _accept(self, event: pb.MessageEvent, attachment: memoryview) -> list[RecordBatch]:
        """Return the event's batches from the wanted position on and move the position.

        Raises:
            TidelogError: they are damaged, or records between are missing.
        """
        position = self.positions.get(event.partition)
        if position is None or event.topic_id != self._topic_id:
            return []  # on its way when the partition was given up
        accepted: list[RecordBatch] = []
        try:
            for view in iter_batches(attachment):
                batch = RecordBatch.parse(view)
                if batch.base_offset > position and not self._filtered:
                    raise BadReplyError(
                        f"partition {event.partition}: records {position} to {batch.base_offset - 1} were left out"
                    )
                if batch.end_offset > position:
                    if not batch.control:
                        accepted.append(batch.slice_from(position))
                    position = batch.end_offset
        except ProtocolError as error:
            raise error_of_local(error) from error
        if self._filtered and event.next_offset > position:
            accepted.append(_nothing(position, event.next_offset))
        self.positions[event.partition] = max(position, event.next_offset)
        return accepted


def _nothing(offset: int, end_offset: int) -> RecordBatch:
    """Return a batch without records: what a filter has left of a stretch of the log, so that positions get past it."""
    base_offset = max(offset, end_offset - _SPAN_MAX)
    header = BatchHeader(
        flags=Flags.DERIVED,
        body_length=0,
        uncompressed_length=0,
        record_count=0,
        body_crc=0,
        last_offset_delta=end_offset - base_offset - 1,
        base_offset=base_offset,
    )
    return RecordBatch(header, b"")
