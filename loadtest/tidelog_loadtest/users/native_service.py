"""The native client behind a pipe: the work of a locust user of class `NativeUser`, in a separate process.

Locust patches the standard library, which breaks the client (asyncio, threads): a patched thread may wait forever for a
lock. So a user starts `python -m tidelog_loadtest.users.native_service HOST:PORT TOPIC`, writes one task per line
(`publish` or `fetch`) and reads one line of JSON for each: `Done`. The process exits at the end of its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Final

from tidelog import Client
from tidelog_loadtest.users.time_stamps import stamped

RECORDS_PER_SEND: Final = 100
FETCH_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one task.

    Attributes:
        response_ms: duration of the client's call.
        length_bytes: bytes published or fetched; 0 after a failure.
        failure: the client's exception as text, or None.
    """

    response_ms: float
    length_bytes: int
    failure: str | None


class Service:
    """Publishes lists of values to a topic, and fetches partition 0 from its beginning."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._producer = client.producer(topic)
        self._topic = topic
        self._next_offset = 0

    async def publish(self) -> int:
        """Publish some values, wait for their acknowledgements, and return their size in bytes."""
        values = [stamped().encode() for _ in range(RECORDS_PER_SEND)]
        await self._producer.send_many(values)
        return sum(map(len, values))

    async def fetch(self) -> int:
        """Fetch the records after the last fetch, and return their size in bytes."""
        fetched = await self._client.fetch(self._topic, 0, self._next_offset, max_bytes=FETCH_MAX_BYTES)
        self._next_offset = fetched.next_offset
        return sum(batch.header.length for batch in fetched.batches)

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.close()


async def timed(action: Callable[[], Awaitable[int]]) -> Done:
    """Run `action`, which returns a number of bytes, and return the result of the task."""
    began_s = time.perf_counter()
    length_bytes, failure = 0, None
    try:
        length_bytes = await action()
    except Exception as error:  # noqa: BLE001 - a load test counts failures of every kind
        failure = f"{type(error).__name__}: {error}"
    return Done((time.perf_counter() - began_s) * 1e3, length_bytes, failure)


async def serve(bootstrap: str, topic: str) -> None:
    """Run the tasks from standard input in order, until its end.

    Raises:
        KeyError: a line names no task.
    """
    async with Client(bootstrap, client_id="tidelog-loadtest") as client:
        service = Service(client, topic)
        tasks = {"publish": service.publish, "fetch": service.fetch}
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(json.dumps(asdict(await timed(tasks[line.strip()]))) + "\n")
            sys.stdout.flush()
        await service.close()


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
