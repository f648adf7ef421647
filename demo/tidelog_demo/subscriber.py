"""A WebSocket subscriber that counts received flights, and detects missing and repeated records.

The subscriber implements the subprotocol `tidelog.v1.json`: it subscribes with some credit, and returns credit for the
records that it has received. Offsets of a partition are contiguous, so a missing or repeated record changes a batch's
first offset or the offset after its last record.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

SUBPROTOCOL: Final = "tidelog.v1.json"
CREDIT_RECORDS: Final = 20_000
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
SILENCE_S_MAX: Final = 60.0
"""Maximum time without a message of the gateway while records are expected."""

_SID: Final = 1


class SubscriberError(Exception):
    """The subscription failed, timed out, or lost or repeated a record."""


class Counter:
    """Counts the records of batch messages and checks their offsets, partition by partition.

    Attributes:
        records: number of records received.
    """

    def __init__(self) -> None:
        self.records = 0
        self._next_offset: dict[int, int] = defaultdict(int)

    def receive(self, batch: dict[str, Any]) -> int:
        """Process the content of one batch message and return its number of records.

        Raises:
            SubscriberError: a record of the partition is missing or repeated.
        """
        partition, records = batch["partition"], batch["records"]
        expected = self._next_offset[partition]
        end = expected + len(records)
        if records and (records[0]["offset"] != expected or batch["next_offset"] != end):
            raise SubscriberError(
                f"partition {partition}: expected the {len(records)} records from offset {expected} to {end - 1}, got "
                f"offsets {records[0]['offset']} to {batch['next_offset'] - 1}: records are missing or repeated"
            )
        self._next_offset[partition] = end
        self.records += len(records)
        return len(records)


async def subscribe(url: str, topic: str, expected: int, counted: Callable[[int], None], ready: asyncio.Event) -> None:
    """Count the records of `topic` from its beginning until `expected` have arrived.

    Args:
        url: the gateway's WebSocket.
        topic: topic to subscribe to; must exist.
        expected: number of records to wait for.
        counted: called with the number of records of each message.
        ready: set when the subscription is confirmed.

    Raises:
        SubscriberError: the gateway sent an error, a record is missing or repeated, more than `expected` records
            arrived, or no message arrived for `SILENCE_S_MAX`.
    """
    async with connect(
        url, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=MESSAGE_BYTES_MAX, proxy=None
    ) as connection:
        credit = {"records": CREDIT_RECORDS}
        await _send(connection, {"id": 1, "sub": {"sid": _SID, "topic": topic, "from": "earliest", "credit": credit}})
        counter = Counter()
        while counter.records < expected:
            message = await _receive(connection)
            if "batch" in message:
                records = counter.receive(message["batch"])
                counted(records)
                await _send(connection, {"credit": {"sid": _SID, "records": records}})
            elif "ok" in message:
                ready.set()
            else:
                raise SubscriberError(f"expected a message ok or batch from the gateway, got {message}")
        if counter.records > expected:
            raise SubscriberError(
                f"{counter.records} records were received over the WebSocket, but {expected} were published"
            )


async def _send(connection: ClientConnection, message: dict[str, Any]) -> None:
    await connection.send(orjson.dumps(message).decode())


async def _receive(connection: ClientConnection) -> dict[str, Any]:
    try:
        async with asyncio.timeout(SILENCE_S_MAX):
            message: dict[str, Any] = orjson.loads(await connection.recv())
    except TimeoutError as error:
        raise SubscriberError(
            f"the gateway sent nothing over the WebSocket for {SILENCE_S_MAX:.0f} s while records were expected; see "
            "the gateway's log"
        ) from error
    return message
