"""Where records go that do not decode: as they were sent, to a topic of their own, with where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog.cursor import Undecodable
from tidelog.errors import UnknownTopicError
from tidelog.producer import Producer

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

    async def put(self, undecodable: Undecodable) -> None:
        """Publish a record and wait until it is acknowledged.

        Raises:
            TidelogError: it was not.
        """
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

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.close()
