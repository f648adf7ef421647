"""Dead letters: records that do not decode are published unchanged to another topic, with their origin in headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog.errors import (
    BatchTooLargeError,
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
"""Headers that are added after the record's own."""


class DeadLetters:
    """The dead-letter topic of one consumer.

    Args:
        make_producer: creates the producer; called for the first record.
    """

    def __init__(self, make_producer: Callable[[], Producer]) -> None:
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._record: Record | None = None
        """The record being published, including one whose caller was cancelled."""
        self._task: asyncio.Task[None] | None = None

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
            self._task = asyncio.get_running_loop().create_task(self._publish(undecodable), name="dead letter")
        task = self._task
        await asyncio.wait([task])
        if self._task is task:
            self._task = None
        if task.cancelled():
            return False
        try:
            task.result()
        except (BatchTooLargeError, UnsupportedBatchError) as error:
            raise _undeliverable_error(undecodable.record, error) from error
        return True

    async def close(self) -> None:
        """Close the producer; a waiting `put` returns False.

        An unacknowledged record is not waited for: its position has not advanced, so its next reader publishes it.
        """
        self._give_up()
        if self._producer is not None:
            await self._producer.abort()

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(_retrieve_exception)
            self._task.cancel()
            self._task = None

    async def _publish(self, undecodable: Undecodable) -> None:
        producer = self._producer
        if producer is not None and not producer.closed:
            try:
                await self._send(producer, undecodable)
            except UnknownTopicError:
                # A producer is bound to a topic id; a recreated topic of the same name is acceptable here.
                await producer.abort()
            else:
                return
        producer = self._producer = self._make_producer()
        await self._send(producer, undecodable)

    @staticmethod
    async def _send(producer: Producer, undecodable: Undecodable) -> None:
        record, error = undecodable
        values = (record.topic, str(record.partition), str(record.offset), repr(error)[:ERROR_CHARS_MAX])
        headers = (*record.headers, *zip(HEADERS, (each.encode(errors="replace") for each in values), strict=True))
        await producer.send(
            record.value, key=record.key, headers=headers, tag=record.tag, timestamp_us=record.timestamp_us
        )


def _undeliverable_error(record: Record, error: TidelogError) -> RecordError:
    return RecordError(
        f"{record.topic}/{record.partition}: the record at offset {record.offset} does not decode, and the dead-letter "
        f"topic refuses it: {describe_error(error)}; seek to {record.offset + 1} to continue after it",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Mark a task's exception as retrieved, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
