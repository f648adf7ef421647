"""A paced load on some partitions that stores acknowledgements and lets callers wait for them.

The load is paced because the benchmark measures the time without publishes, not the throughput: at full speed a
restarted node would catch up during the whole next round, and twenty rounds would fill the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import TracebackType
from typing import Final, Self

from tidelog import Client, Producer
from tidelog.errors import TidelogError
from tidelog.produce.receipts import Receipts
from tidelog_loadtest.cluster.acknowledgement_ledger import Ledger

BATCH_RECORDS: Final = 50
SENDS_UNDER_WAY: Final = 4
"""Maximum number of pending sends per partition."""


class Load:
    """Publishes while the context (`async with`) is active. An exit without an error waits for all pending sends.

    Args:
        client: connected to the cluster.
        topic: the topic's name.
        ledger: creates the records and stores their acknowledgements.
        partitions: partitions 0 to `partitions - 1` get records.
        records_per_s: rate of each partition.

    Attributes:
        failed: number of sends that failed; their records count as not acknowledged.
        last_error: the last of these errors.
    """

    def __init__(self, client: Client, topic: str, ledger: Ledger, *, partitions: int, records_per_s: int) -> None:
        self.failed = 0
        self.last_error = ""
        self._producer: Producer = client.producer(topic, acks="quorum")
        self._ledger = ledger
        self._partitions = partitions
        self._pause_s = BATCH_RECORDS * SENDS_UNDER_WAY / records_per_s
        self._stopped = False
        self._tasks: list[asyncio.Task[None]] = []
        self._awaited: dict[asyncio.Future[int], tuple[int, int]] = {}

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._publish(partition), name=f"load {partition}")
            for partition in range(self._partitions)
            for _ in range(SENDS_UNDER_WAY)
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        if kind is None:
            await asyncio.gather(*self._tasks)
            await self._producer.close()
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._producer.abort()

    async def first_ack(self, partition: int, appended_after_us: int) -> int:
        """Return the time (perf_counter_ns) of the first acknowledgement of records that are appended after a time.

        The time of the append counts, so that an acknowledgement in transit at the fault is not taken for a later one.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._awaited[future] = (partition, appended_after_us)
        try:
            return await future
        finally:
            self._awaited.pop(future, None)

    async def _publish(self, partition: int) -> None:
        while not self._stopped:
            first, records = self._ledger.records(BATCH_RECORDS)
            try:
                receipts = await self._producer.send_arrow(records, partition=partition)
            except TidelogError as error:
                self.failed += 1
                self.last_error = str(error)
            else:
                self._acknowledged(partition, first, receipts)
            await asyncio.sleep(self._pause_s)

    def _acknowledged(self, partition: int, first: int, receipts: Receipts) -> None:
        now_ns = time.perf_counter_ns()
        self._ledger.acknowledged(first, receipts.ranges)
        appended_us = receipts[0].timestamp_us
        for future, (awaited, after_us) in self._awaited.items():
            if awaited == partition and appended_us > after_us:
                with contextlib.suppress(
                    asyncio.InvalidStateError
                ):  # several acknowledgements in one iteration of the event loop
                    future.set_result(now_ns)
