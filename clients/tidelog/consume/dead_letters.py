"""The dead-letter topic of a consumer: records that do not decode or were rejected, as they were sent."""

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
    told,
)
from tidelog.model import Record
from tidelog.produce.producer import Producer
from tidelog.subscriptions.cursor import Undecodable

ERROR_CHARS_MAX: Final = 1024
"""An error is told with so many characters."""

HEADERS: Final = ("tidelog-topic", "tidelog-partition", "tidelog-offset", "tidelog-error")
"""Headers of a dead letter, after those of the record: its origin and the reason."""


class DeadLetters:
    """The dead-letter topic of one consumer.

    Args:
        make_producer: makes a producer for the topic; called when there is a first record for it.
    """

    def __init__(self, make_producer: Callable[[], Producer]) -> None:
        self._make_producer = make_producer
        self._producer: Producer | None = None
        self._record: Record | None = None
        """What is under way, or was when nobody waited for it any more."""
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def put(self, undecodable: Undecodable) -> bool:
        """Publish a record and wait until it is acknowledged; False when this was closed meanwhile.

        Who is cancelled while it waits finds it under way, or acknowledged, the next time: it is not published twice.

        Raises:
            RecordError: it can be no record of that topic.
            TidelogError: it was not acknowledged; the next time it is tried again.
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
            raise _hopeless(undecodable.record, "does not decode, and ", error) from error
        return True

    async def publish(self, record: Record, reason: str | Exception) -> None:
        """Publish a record that the user rejects, and wait until it is acknowledged.

        Raises:
            RecordError: the dead-letter topic cannot have such a record.
            TidelogError: it was not acknowledged, or this was closed.
        """
        try:
            await self._publish(record, reason)
        except (BatchTooLargeError, UnsupportedBatchError) as error:
            raise _hopeless(record, "", error) from error

    async def close(self) -> None:
        """Close the producer. Whoever waits for an acknowledgement comes to the end.

        What is not acknowledged is not waited for: its record is not passed, and whoever reads it next publishes it.
        """
        self._closed = True
        self._give_up()
        if self._producer is not None:
            await self._producer.abort()

    def _give_up(self) -> None:
        if self._task is not None:
            self._task.add_done_callback(_hear)
            self._task.cancel()
            self._task = None

    async def _publish(self, record: Record, reason: str | Exception) -> None:
        async with self._one_at_a_time:  # one producer, which a topic that was deleted replaces
            producer = self._producer
            if producer is not None and not producer.closed:
                try:
                    await self._send(producer, record, reason)
                except UnknownTopicError:
                    # It writes to the topic that it began with; one that was made since under the name is as good here.
                    await producer.abort()
                else:
                    return
            if self._closed:
                raise ClosedError("the consumer is closed")
            producer = self._producer = self._make_producer()
            await self._send(producer, record, reason)

    @staticmethod
    async def _send(producer: Producer, record: Record, reason: str | Exception) -> None:
        why = reason if isinstance(reason, str) else repr(reason)
        told = (record.topic, str(record.partition), str(record.offset), why[:ERROR_CHARS_MAX])
        headers = (*record.headers, *zip(HEADERS, (each.encode(errors="replace") for each in told), strict=True))
        await producer.send(
            record.value, key=record.key, headers=headers, tag=record.tag, timestamp_us=record.timestamp_us
        )


def _hopeless(record: Record, fault: str, error: TidelogError) -> RecordError:
    return RecordError(
        f"{record.topic}/{record.partition}: the record at offset {record.offset} {fault}cannot be a dead letter: "
        f"{told(error)}; seek to {record.offset + 1} to skip it",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def _hear(task: asyncio.Task[None]) -> None:
    """Look at what became of a task that nobody waits for, or asyncio complains."""
    if not task.cancelled():
        task.exception()
