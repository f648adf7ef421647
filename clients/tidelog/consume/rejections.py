"""Rejected records: published to the dead-letter topic of their consumer as they were sent."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from tidelog.cluster.routing import Router
from tidelog.consume.dead_letters import DeadLetters
from tidelog.errors import ClosedError, InvalidRequestError, OffsetOutOfRangeError, RecordError
from tidelog.model import ConsumedBatch, Record, TopicPartition
from tidelog.requests.fetch_and_commit import fetch
from tidelog.subscriptions.batch_records import BatchRecords
from tidelog.subscriptions.consumer_options import ConsumerOptions
from tidelog.subscriptions.cursor import Cursor
from tidelog.subscriptions.deserializers import Decoding
from tidelog.subscriptions.row_view import RowView


class Rejections:
    """Finds the sent bytes of records that the application rejects, and publishes them as dead letters.

    Args:
        topic_ids: name -> id of the topics that the consumer reads.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        cursor: Cursor,
        dead_letters: DeadLetters,
        topic_ids: Mapping[str, bytes],
    ) -> None:
        self._router = router
        self._options = options
        self._cursor = cursor
        self._dead_letters = dead_letters
        self._topic_ids = topic_ids

    async def reject(self, record: Record, reason: str | Exception) -> None:
        """Publish a record to the dead-letter topic, and return when the publish is acknowledged.

        The dead letter has the key, value, headers, tag and time that were sent, not the results of deserializers, and
        in addition the headers `tidelog-topic`, `tidelog-partition`, `tidelog-offset` and `tidelog-error` (the reason,
        at most 1,024 characters), which replace those of an earlier dead letter. If the process ends before the
        position is committed, or the call is cancelled, the record may be published twice. Concurrent calls of one
        consumer publish one after another.

        With deserializers, a record of a batch that is not the current one is read from the node again.

        Raises:
            InvalidRequestError: the consumer was made without `dead_letter`, or `record` is not a record.
            RecordError: the record is too large for the dead-letter topic, or has no key and that topic is compacted;
                or the log no longer has the bytes that were sent.
            UnknownTopicError: the dead-letter topic does not exist.
            TidelogError: the dead letter was not acknowledged; reject the record again.
        """
        if self._options.dead_letter is None:
            raise InvalidRequestError(
                "this consumer has no dead-letter topic; pass dead_letter='TOPIC' to client.consumer()"
            )
        if not isinstance(record, Record):
            raise InvalidRequestError(f"reject() takes a Record of this consumer, got {type(record).__name__}")
        if self._dead_letters.closed:
            raise ClosedError("the consumer is closed; reject records before close()")
        await self._dead_letters.publish(await self._as_sent(record), reason)

    async def _as_sent(self, record: Record) -> Record:
        """Return a record as it was sent, before deserialization.

        Raises:
            RecordError: the log no longer has the record.
            TidelogError: the record cannot be read.
        """
        decoding = self._options.decoding
        if decoding.key is None and decoding.value is None:
            return record
        if (at_hand := self._cursor.as_sent(record)) is not None:
            return at_hand
        if (stored := await self._stored(record)) is not None:
            return stored
        raise RecordError(
            f"{record.topic}/{record.partition}: the log no longer has the record at offset {record.offset}, so the "
            "bytes that were sent cannot be published to the dead-letter topic; reject records before retention or "
            "compaction deletes them",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
        )

    async def _stored(self, record: Record) -> Record | None:
        """Return a record as the log has it; None if it was deleted.

        Raises:
            TidelogError: the record cannot be read.
        """
        where = TopicPartition(record.topic, record.partition)
        topic_id = self._topic_ids.get(record.topic, b"")
        try:  # A node returns whole batches and at least one, so this requests the smallest answer.
            fetched = await fetch(self._router, *where, record.offset, max_bytes=1, topic_id=topic_id)
        except OffsetOutOfRangeError:
            return None
        for batch in fetched.batches:
            offsets = batch.offset_list()
            index = bisect_left(offsets, record.offset)
            if index < len(offsets) and offsets[index] == record.offset:
                return BatchRecords(ConsumedBatch(*where, batch), Decoding(), RowView()).as_sent(index)
        return None
