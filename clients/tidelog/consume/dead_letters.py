"""Where records go that do not decode: as they were sent, to a topic of their own, with where they come from."""

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
    told,
)
from tidelog.model import Record
from tidelog.produce.producer import Producer
from tidelog.subscriptions.cursor import Undecodable

ERROR_CHARS_MAX: Final = 1024
"""An error is told with so many characters."""

HEADERS: Final = ("tidelog-topic", "tidelog-partition", "tidelog-offset", "tidelog-error")
"""What a dead letter is told about, behind the headers that the record has itself."""


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
        """Close the producer. Whoever waits for an acknowledgement comes to the end.

        What is not acknowledged is not waited for: its record is not passed, and whoever reads it next publishes it.
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
                # It writes to the topic that it began with; one that was made since under the name is as good here.
                await producer.abort()
            else:
                return
        producer = self._producer = self._make_producer()
        await self._send(producer, undecodable)

    @staticmethod
    async def _send(producer: Producer, undecodable: Undecodable) -> None:
        record, error = undecodable
        told = (record.topic, str(record.partition), str(record.offset), repr(error)[:ERROR_CHARS_MAX])
        headers = (*record.headers, *zip(HEADERS, (each.encode(errors="replace") for each in told), strict=True))
        await producer.send(
            record.value, key=record.key, headers=headers, tag=record.tag, timestamp_us=record.timestamp_us
        )


def _undeliverable_error(record: Record, error: TidelogError) -> RecordError:
    return RecordError(
        f"{record.topic}/{record.partition}: the record at offset {record.offset} does not decode, and cannot be a "
        f"dead letter either: {told(error)}; seek to {record.offset + 1} to read on behind it",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Look at what became of a task that nobody waits for, or asyncio complains."""
    if not task.cancelled():
        task.exception()
