"""The dead-letter topic of a consumer: records that do not decode or were rejected, published as they were sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.errors import (
    BatchTooLargeError,
    ClosedError,
    RecordError,
    TidelogError,
    UnknownTopicError,
    UnsupportedBatchError,
    describe_error,
)
from tidelog.model import Record
from tidelog.produce.producer import Producer
from tidelog.subscriptions.cursor import Undecodable

ERROR_CHARS_MAX: Final = 1024
"""Maximum length of the error in the header."""

HEADERS: Final = ("tidelog-topic", "tidelog-partition", "tidelog-offset", "tidelog-error")
"""Headers of a dead letter, after those of the record: its origin and the reason.

They replace headers of the same names, which the record has if it is itself a dead letter.
"""


class DeadLetters:
    """Publishes undecodable and rejected records of one consumer to its dead-letter topic.

    Args:
        make_producer: creates the producer; called for the first record.
    """

    def __init__(self, make_producer: Callable[[], Producer]) -> None:
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._record: Record | None = None
        """The record being published; it stays set if the call of `put` was cancelled."""
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def put(self, undecodable: Undecodable) -> bool:
        """Publish a record and wait for its acknowledgement; False if closed in the meantime.

        If the caller is cancelled, its next call waits for the same publish; the record is not published twice.

        Raises:
            RecordError: the dead-letter topic cannot store the record.
            TidelogError: the record was not acknowledged; the next call retries.
        """
        if self._task is None or self._record != undecodable.record:
            self._give_up()
            self._record = undecodable.record
            self._task = asyncio.get_running_loop().create_task(self._publish(*undecodable), name="dead letter")
        task = self._task
        await asyncio.wait([task])
        if self._task is task:
            self._task = None
        if task.cancelled():
            return False
        try:
            task.result()
        except (BatchTooLargeError, UnsupportedBatchError) as error:
            remedy = f"; seek to {undecodable.record.offset + 1} to skip it"
            raise _undeliverable_error(undecodable.record, "does not decode, and ", error, remedy) from error
        return True

    async def publish(self, record: Record, reason: str | Exception) -> None:
        """Publish a rejected record and wait for its acknowledgement.

        Raises:
            RecordError: the dead-letter topic cannot store the record.
            TidelogError: the record was not acknowledged, or the consumer was closed.
        """
        try:
            await self._publish(record, reason)
        except (BatchTooLargeError, UnsupportedBatchError) as error:
            raise _undeliverable_error(record, "", error, "") from error

    async def close(self) -> None:
        """Close the producer; a waiting `put` returns False.

        An unacknowledged record is not waited for: its position has not advanced, so its next reader publishes it.
        """
        self._closed = True
        self._give_up()
        if self._producer is not None:
            await self._producer.abort()

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(_retrieve_exception)
            self._task.cancel()
            self._task = None

    async def _publish(self, record: Record, reason: str | Exception) -> None:
        async with self._one_at_a_time:  # One producer at a time; replaced when its topic is deleted.
            producer = self._producer
            if producer is not None and not producer.closed:
                try:
                    await self._send(producer, record, reason)
                except UnknownTopicError:
                    # A producer is bound to a topic id; a recreated topic of the same name is acceptable here.
                    await producer.abort()
                else:
                    return
            if self._closed:
                raise ClosedError("the consumer is closed; the record was not published to the dead-letter topic")
            producer = self._producer = self._make_producer()
            await self._send(producer, record, reason)

    @staticmethod
    async def _send(producer: Producer, record: Record, reason: str | Exception) -> None:
        why = reason if isinstance(reason, str) else repr(reason)
        values = (record.topic, str(record.partition), str(record.offset), why[:ERROR_CHARS_MAX])
        own = (header for header in record.headers if header[0] not in HEADERS)
        headers = (*own, *zip(HEADERS, (each.encode(errors="replace") for each in values), strict=True))
        await producer.send(
            record.value, key=record.key, headers=headers, tag=record.tag, timestamp_us=record.timestamp_us
        )


def _undeliverable_error(record: Record, fault: str, error: TidelogError, remedy: str) -> RecordError:
    return RecordError(
        f"{record.topic}/{record.partition}: the record at offset {record.offset} {fault}cannot be published to the "
        f"dead-letter topic: {describe_error(error)}{remedy}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark a task's exception as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
