"""One SUBSCRIBE on one connection: where its partitions are, and what became of what it sent. No I/O of its own.

The node sends whole batches as long as it has credit (`prefetch.py`), which goes back as the user takes batches: the
pipe never runs dry, and a user who stops reading stops the node. Where an event begins before the position that is
wanted (a batch is sent whole) it is trimmed here; what comes twice is dropped here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

from tidelog.errors import BadReplyError, TidelogError, error_of, error_of_read
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit, Window
from tidelog_proto.batch.header import BatchHeader, Flags, is_one_batch
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

_SPAN_MAX: Final = 2**32
"""How many offsets a batch covers at most."""


class Lender(Protocol):
    """Who is told that something was taken: a window, or the whole bound."""

    def give_back(self, cost: Credit) -> None:
        """Something that waited was taken."""


class Prefetched(NamedTuple):
    """A batch that waits for the user. `credit` is due when it is taken: the event's, on its last batch.

    `high_watermark` is the partition's end, as the node knew it when it sent the event.
    """

    where: TopicPartition
    batch: RecordBatch
    lender: Lender
    credit: Credit | None
    high_watermark: int = 0


class Listener(Protocol):
    """The consumer, as its subscriptions see it."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """Process a batch that has just arrived, and that nothing precedes; False to have it wait."""
        ...

    def detached(self, subscription: Subscription, partitions: Collection[TopicPartition], error: TidelogError) -> None:
        """Partitions are no longer served by a subscription."""

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """The node sent something that no reader can go on from."""


class Subscription:
    """The positions of one subscription.

    Args:
        topics: topic id, 16 bytes -> name.
        positions: partition -> next offset wanted.
        window: what it may send.
        listener: gets what arrives.
        filtered: whether only some records are wanted, so that those between are left out.
    """

    def __init__(
        self,
        topics: Mapping[bytes, str],
        positions: dict[TopicPartition, int],
        window: Window,
        listener: Listener,
        *,
        filtered: bool = False,
    ) -> None:
        self.positions = positions
        self.window = window
        self._topics = topics
        self._listener = listener
        self._filtered = filtered

    def pushed(self, frame: Frame) -> None:
        """Take a MESSAGE_EVENT or SUBSCRIPTION_ENDED."""
        if frame.envelope.WhichOneof("kind") == "subscription_ended":
            ended = frame.envelope.subscription_ended
            self.end(TopicPartition(self._topics.get(ended.topic_id, ""), ended.partition), error_of(ended.error))
            return
        event, attachment = frame.envelope.message_event, frame.attachment
        where = TopicPartition(self._topics.get(event.topic_id, ""), event.partition)
        records, size_bytes = event.record_count, len(attachment)
        sole = self._sole(where, event.next_offset, attachment)
        try:
            batches = self._accept(where, event.next_offset, attachment) if sole is None else [sole]
        except TidelogError as error:
            self.window.passed(records, size_bytes)
            self._listener.failed(where, error)
            return
        taken = 0
        while taken < len(batches) and self._listener.take_at_once(where, batches[taken]):
            taken += 1
        if taken == len(batches):
            self.window.passed(records, size_bytes)
            return
        batches = batches[taken:]
        credit = Credit(records, size_bytes)
        self.window.arrived(credit)
        last = len(batches) - 1
        self._listener.prefetched(
            [
                Prefetched(where, batch, self.window, credit if index == last else None, event.high_watermark)
                for index, batch in enumerate(batches)
            ]
        )

    def connection_lost(self, error: TidelogError) -> None:
        """The connection is gone, and the subscription with it."""
        if self.positions:
            self._listener.detached(self, list(self.positions), error)

    def end(self, where: TopicPartition, error: TidelogError) -> None:
        """One partition is no longer served."""
        if where in self.positions:
            self._listener.detached(self, [where], error)

    def _sole(self, where: TopicPartition, next_offset: int, attachment: memoryview) -> RecordBatch | None:
        """Return the batch of an event that is one batch from the wanted position on, and move the position.

        None for all other events, which are for `_accept`, and where nothing was changed.
        """
        if not is_one_batch(attachment):
            return None
        try:
            batch = RecordBatch.parse(attachment)
        except ProtocolError:
            return None
        header = batch.header
        if header.flags & Flags.CONTROL or header.base_offset != self.positions.get(where):
            return None
        if header.base_offset + header.last_offset_delta + 1 != next_offset:
            return None
        self.positions[where] = next_offset
        return batch

    def _accept(self, where: TopicPartition, next_offset: int, attachment: memoryview) -> list[RecordBatch]:
        """Return the event's batches from the wanted position on and move the position.

        Raises:
            TidelogError: they are damaged, or records between are missing.
        """
        position = self.positions.get(where)
        if position is None:
            return []  # on its way when the partition was given up
        accepted: list[RecordBatch] = []
        try:
            for view in iter_batches(attachment):
                batch = RecordBatch.parse(view)
                if batch.base_offset > position and not self._filtered:
                    raise BadReplyError(
                        f"partition {where.partition}: records {position} to {batch.base_offset - 1} were left out"
                    )
                if batch.end_offset > position:
                    accepted.append(
                        _nothing(position, batch.end_offset, batch.header.epoch)
                        if batch.control
                        else batch.slice_from(position)
                    )
                    position = batch.end_offset
        except ProtocolError as error:
            raise error_of_read(error, where.topic, where.partition, position) from error
        if self._filtered and next_offset > position:
            accepted.append(_nothing(position, next_offset))
        self.positions[where] = max(position, next_offset)
        return accepted


def _nothing(offset: int, end_offset: int, epoch: int = 0) -> RecordBatch:
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
        epoch=epoch,
    )
    return RecordBatch(header, b"")
