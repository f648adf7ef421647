"""One SUBSCRIBE on one connection: its positions, and the processing of received events. No I/O.

The node sends whole batches while it has credit (`prefetch.py`), which returns as the application takes batches; an
application that stops reading also stops the node. A batch that begins before the next position is trimmed; duplicates
are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple, Protocol

from tidelog.cluster.topic_schemas import TopicSchemas, typed_number
from tidelog.errors import BadReplyError, TidelogError, error_of, error_of_read
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit, Window
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags, whole_common_batch
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.wire.pushed_events import PushedEvent

_SPAN_MAX: Final = 2**32
"""Maximum number of offsets that a batch covers."""


class Lender(Protocol):
    """The owner of the credit of received batches: takes it back when the batches are taken."""

    def give_back(self, cost: Credit) -> None:
        """Return the credit of a batch that was taken."""


class Prefetched(NamedTuple):
    """A received batch.

    Attributes:
        lender: the object to which `credit` is returned when the batch is taken.
        credit: the cost of the MESSAGE_EVENT that contained the batch; None unless this is the event's last batch.
        high_watermark: the partition's end that the event reported.
        schema: under which rows are shown; None for the newest known one, or in an untyped topic.
    """

    where: TopicPartition
    batch: RecordBatch
    lender: Lender
    credit: Credit | None
    high_watermark: int = 0
    schema: Schema | None = None


class Listener(Protocol):
    """Callbacks of a `Subscription`: receives its batches, and is notified when a partition is detached or fails."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Queue batches that arrived."""

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """Deliver a batch at once if no other one is queued; return False if the caller has to queue it."""
        ...

    def detached(self, subscription: Subscription, partitions: Collection[TopicPartition], error: TidelogError) -> None:
        """Handle partitions that a subscription no longer serves."""

    def schema_missing(self, where: TopicPartition, topic_id: bytes, number: int) -> None:
        """Receive a partition again from its position, when a schema of its topic is known."""

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Handle an event with damaged or missing records, after which its partition cannot be read further."""


class Subscription:
    """Processes the events of one SUBSCRIBE, and tracks the next offset of each of its partitions.

    Args:
        topics: topic id, 16 bytes -> name.
        positions: partition -> next offset to receive.
        filtered: whether a record filter is set, so that events have gaps.
        schemas: the schemas of typed topics; None: no topic is typed.
        bound: topic id -> the schema by which fields were requested; topics whose records are read whole are missing.
    """

    def __init__(
        self,
        topics: Mapping[bytes, str],
        positions: dict[TopicPartition, int],
        window: Window,
        listener: Listener,
        *,
        filtered: bool = False,
        schemas: TopicSchemas | None = None,
        bound: Mapping[bytes, Schema] | None = None,
    ) -> None:
        self._schemas = schemas
        self._bound = bound or {}
        self.positions = positions
        self.window = window
        self._topics = topics
        ids = {name: topic_id for topic_id, name in topics.items()}
        self._partitions = {(ids[where.topic], where.partition): where for where in positions if where.topic in ids}
        self._listener = listener
        self._filtered = filtered

    def pushed(self, event: PushedEvent) -> None:
        """Decode the batches of a MESSAGE_EVENT, and deliver them to the listener."""
        _, topic_id, partition, records, high_watermark, next_offset, attachment = event
        where = self._partitions.get((topic_id, partition)) or self._other_partition(topic_id, partition)
        size_bytes = len(attachment)
        header = whole_common_batch(attachment)
        if (
            header is not None
            and header.base_offset == self.positions.get(where)
            and header.base_offset + header.last_offset_delta + 1 == next_offset
        ):  # fast path for the usual event: exactly the next batch
            batch = RecordBatch(header, attachment[HEADER_BYTES:])
            self.positions[where] = next_offset
            if self._listener.take_at_once(where, batch):
                self.window.passed(records, size_bytes)
                return
            batches = [batch]
        else:
            try:
                batches = self._accept(where, topic_id, next_offset, attachment)
            except _MissingSchemaError as missing:
                self.window.passed(records, size_bytes)
                self._listener.schema_missing(where, topic_id, missing.number)
                return
            except TidelogError as error:
                self.window.passed(records, size_bytes)
                self._listener.failed(where, error)
                return
            taken_count = 0
            while taken_count < len(batches) and self._listener.take_at_once(where, batches[taken_count]):
                taken_count += 1
            if taken_count == len(batches):
                self.window.passed(records, size_bytes)
                return
            batches = batches[taken_count:]
        credit = Credit(records, size_bytes)
        self.window.arrived(credit)
        last = len(batches) - 1
        schema = self._bound.get(topic_id)
        self._listener.prefetched(
            [
                Prefetched(where, batch, self.window, credit if index == last else None, high_watermark, schema)
                for index, batch in enumerate(batches)
            ]
        )

    def ended(self, ended: pb.SubscriptionEnded) -> None:
        """End the partition of a SUBSCRIPTION_ENDED."""
        self.end(TopicPartition(self._topics.get(ended.topic_id, ""), ended.partition), error_of(ended.error))

    def connection_lost(self, error: TidelogError) -> None:
        """Detach all partitions, because the connection is lost."""
        if self.positions:
            self._listener.detached(self, list(self.positions), error)

    def end(self, where: TopicPartition, error: TidelogError) -> None:
        """Detach one partition."""
        if where in self.positions:
            self._listener.detached(self, [where], error)

    def _other_partition(self, topic_id: bytes, partition: int) -> TopicPartition:
        """Return a partition without a position; the topic of an unknown id has no name."""
        return TopicPartition(self._topics.get(topic_id, ""), partition)

    def _accept(
        self, where: TopicPartition, topic_id: bytes, next_offset: int, attachment: memoryview
    ) -> list[RecordBatch]:
        """Return the event's batches from the next position on, and advance the position.

        Raises:
            TidelogError: a batch is damaged, or records are missing.
            _MissingSchemaError: a schema is not known, or later than that of the requested fields; the position stays.
        """
        position = self.positions.get(where)
        if position is None:
            return []  # The node sent the event before it processed the removal of the partition.
        accepted: list[RecordBatch] = []
        try:
            for view in iter_batches(attachment):
                batch = RecordBatch.parse(view, self._layouts(topic_id, view))
                if batch.base_offset > position and not self._filtered:
                    raise BadReplyError(
                        f"{where.topic}/{where.partition}: the node skipped records {position} to "
                        f"{batch.base_offset - 1}, although the consumer has no filter"
                    )
                if batch.end_offset > position:
                    accepted.append(
                        _empty_batch(position, batch.end_offset, batch.header.epoch)
                        if batch.control
                        else batch.slice_from(position)
                    )
                    position = batch.end_offset
        except ProtocolError as error:
            raise error_of_read(error, where.topic, where.partition, position) from error
        if self._filtered and next_offset > position:
            accepted.append(_empty_batch(position, next_offset))
        self.positions[where] = max(position, next_offset)
        return accepted

    def _layouts(self, topic_id: bytes, batch: memoryview) -> Layouts | None:
        """Return the layouts of a topic's schemas, with that of the batch; None if the batch is not typed.

        Raises:
            _MissingSchemaError: its schema is not known, or later than that of the requested fields.
        """
        number = typed_number(batch)
        if not number or self._schemas is None:
            return None
        layouts = self._schemas.known(topic_id)
        bound = self._bound.get(topic_id)
        if number not in layouts or (bound is not None and number > bound.number):
            raise _MissingSchemaError(number)
        return layouts


class _MissingSchemaError(Exception):
    """A batch has a schema that is not known yet, or that the subscription does not expect."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _empty_batch(offset: int, end_offset: int, epoch: int = 0) -> RecordBatch:
    """Return a batch without records, which advances the position over a control batch or filtered records."""
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
