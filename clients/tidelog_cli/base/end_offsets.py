"""End offsets of partitions, confirmed by their owners: usually before the records are read, otherwise during reading.

Committed records can be read while no quorum can confirm the end of a partition. A partition with an unconfirmed end is
therefore read, with a note on standard error; the command has read it completely when the end is confirmed and reached.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from tidelog import Client, ConsumedBatch, Consumer
from tidelog.errors import NodeUnreachableError, TidelogError
from tidelog.subscriptions.consumer_options import LOG_INTERVAL_S, START_WAIT_S
from tidelog_cli.base.output import note

TRY_S: Final = 1.5
"""Timeout in seconds of a request for one partition's end, and the pause between the requests."""

T = TypeVar("T")


async def insisting(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request until it succeeds, as long as some node can be reached; the client logs the cause.

    Raises:
        TidelogError: the error is not retriable, or no node can be reached.
    """
    while True:
        try:
            return await ask()
        except NodeUnreachableError:
            raise
        except TidelogError as error:
            if not error.retriable:
                raise


class Ends:
    """Finds the end offsets of some partitions of a topic, if necessary while the partitions are read.

    Attributes:
        known: partition -> confirmed end offset.
    """

    def __init__(self, client: Client, topic: str, partitions: Iterable[int]) -> None:
        self.known: dict[int, int] = {}
        self._client = client
        self._topic = topic
        self._partitions = list(partitions)
        self._changed = asyncio.Event()
        self._finding: asyncio.Task[None] | None = None

    @property
    def missing(self) -> list[int]:
        """The partitions whose end is not confirmed yet."""
        return [partition for partition in self._partitions if partition not in self.known]

    async def find(self) -> None:
        """Request the end of each partition; after `START_WAIT_S` seconds, request the missing ones in the background.

        Raises:
            TidelogError: the request failed with an error that is not retriable.
        """
        if not self._partitions:
            return
        try:
            async with asyncio.timeout(START_WAIT_S):
                await self._ask(self._partitions)
        except TimeoutError:
            pass
        except TidelogError as error:
            if not error.retriable:
                raise
        if self.missing:
            self._finding = asyncio.get_running_loop().create_task(self._find_missing(), name=f"ends of {self._topic}")

    async def next_batch(self, consumer: Consumer) -> ConsumedBatch | None:
        """Wait for the next batch; return None when more ends are known or the consumer was closed.

        Raises:
            TidelogError: reading or finding an end failed.
        """
        if self._finding is None:
            return await consumer.next_batch()
        if self._finding.done():
            self._finding.result()
            self._finding = None
            return None
        self._changed.clear()
        getting = asyncio.ensure_future(consumer.next_batch())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({getting, changed, self._finding}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            getting.cancel()
            await asyncio.wait({getting, changed})
        return None if getting.cancelled() else getting.result()

    async def close(self) -> None:
        """Stop looking for missing ends."""
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)

    async def _find_missing(self) -> None:
        tell_at = 0.0
        while True:
            await asyncio.gather(*map(self._try_one, self.missing))
            if not self.missing:
                return
            if time.monotonic() >= tell_at:
                tell_at = time.monotonic() + LOG_INTERVAL_S
                names = ", ".join(map(str, self.missing))
                note(
                    f"tidelog: {self._topic}: the ends of partitions {names} are not confirmed yet: an owner, or a "
                    "quorum of the replicas, does not answer; committed records are printed, and the command waits "
                    "(`tidelog cluster status` shows the nodes to start)"
                )
            await asyncio.sleep(TRY_S)

    async def _try_one(self, partition: int) -> None:
        try:
            async with asyncio.timeout(TRY_S):
                await self._ask([partition])
        except TimeoutError:
            return
        except TidelogError as error:
            if not error.retriable:
                raise
        else:
            self._changed.set()

    async def _ask(self, partitions: list[int]) -> None:
        offsets = await self._client.list_offsets(self._topic, "latest", partitions)
        self.known.update({partition: offset.offset for partition, offset in offsets.items()})
