"""Opening of partitions: a few at a time, awaited ones first, each once.

Waiters are called in order, in the same step in which the partition becomes visible: so batches that producers send
while a log is being opened are queued before later ones. The number of waiters per partition is bounded; the number of
partitions to open is bounded by what this node stores.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Concurrently opened logs: enough for all I/O workers, and few enough that an urgent one begins soon."""
WAITING_MAX: Final = 8192
"""Bound on the waiters for one partition."""
RETRY_AFTER_MS: Final = 100

Then = Callable[[Partition | None, ProtocolError | None], None]
"""Called with the open partition, or with the reason why it cannot be opened."""


class PartitionOpener:
    """Opens the partitions of a node. All methods are for the event loop's thread.

    Args:
        open_one: opens a partition and returns it once others can find it; raises ProtocolError.
    """

    def __init__(self, open_one: Callable[[PartitionKey], Awaitable[Partition]], tasks: Tasks) -> None:
        self._open_one = open_one
        self._tasks = tasks
        self._waiting: dict[PartitionKey, list[Then]] = {}
        """Partitions to be opened, or being opened, with their waiters."""
        self._wanted: dict[PartitionKey, None] = {}
        self._unwanted: dict[PartitionKey, None] = {}
        """Partitions to be opened that no request waits for, after those in `_wanted`."""
        self._running: set[PartitionKey] = set()
        self._ended: asyncio.Event | None = None
        self._refusal: ProtocolError | None = None

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._waiting

    def soon(self, key: PartitionKey, then: Then | None = None, *, is_wanted: bool = True) -> None:
        """Open a partition that is not open; `then` may be called at once with an error.

        Args:
            then: called when it is open, or cannot be opened.
            is_wanted: whether it is opened before the partitions that no request waits for.
        """
        if self._refusal is not None:
            if then is not None:
                then(None, self._refusal)
            return
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = []
            (self._wanted if is_wanted else self._unwanted)[key] = None
        elif is_wanted and key in self._unwanted:
            del self._unwanted[key]
            self._wanted[key] = None
        if then is not None and len(waiting) >= WAITING_MAX:
            then(
                None,
                ProtocolError(
                    pb.OVERLOADED,
                    f"{WAITING_MAX} requests, the maximum, already wait until this node has opened partition {key[1]} "
                    f"of the topic with id {key[0].hex()}; send again",
                    retry_after_ms=RETRY_AFTER_MS,
                ),
            )
        elif then is not None:
            waiting.append(then)
        self._go_on()

    async def opened(self, key: PartitionKey, *, is_wanted: bool = True) -> Partition:
        """Open a partition that is not open, and return it.

        Raises:
            ProtocolError: it cannot be opened.
        """
        done: asyncio.Future[Partition] = self._tasks.loop.create_future()

        def then(partition: Partition | None, error: ProtocolError | None) -> None:
            if done.done():
                return
            if partition is not None:
                done.set_result(partition)
            else:
                assert error is not None
                done.set_exception(error)

        self.soon(key, then, is_wanted=is_wanted)
        return await done

    async def forget_topic(self, topic_id: bytes, error: ProtocolError) -> None:
        """Open no more partitions of a topic; return when none of them is being opened."""
        for key in [key for key in (*self._wanted, *self._unwanted) if key[0] == topic_id]:
            self._give_up(key, error)
        await self._until(lambda: not any(key[0] == topic_id for key in self._running))

    async def close(self, error: ProtocolError) -> None:
        """Open no more partitions; return when none is being opened."""
        self._refusal = error
        for key in [*self._wanted, *self._unwanted]:
            self._give_up(key, error)
        await self._until(lambda: not self._running)

    # --------------------------------------------------------------------------------- internals

    def _go_on(self) -> None:
        while self._refusal is None and len(self._running) < AT_ONCE and (self._wanted or self._unwanted):
            queue = self._wanted or self._unwanted
            key = next(iter(queue))
            del queue[key]
            self._running.add(key)
            self._tasks.spawn(self._run(key), f"open partition {key[1]} of {key[0].hex()}")

    async def _run(self, key: PartitionKey) -> None:
        partition: Partition | None = None
        error = ProtocolError(pb.SHUTTING_DOWN, "the node is stopping; retry at another node")
        try:
            partition = await self._open_one(key)
        except ProtocolError as failure:
            error = failure
            log.warning("cannot open partition %d of the topic with id %s: %s", key[1], key[0].hex(), failure.message)
        except asyncio.CancelledError:
            self._refusal = error
            raise
        except Exception:
            error = ProtocolError(
                pb.INTERNAL,
                f"cannot open partition {key[1]} of the topic with id {key[0].hex()}; the node's log has the cause",
            )
            raise
        finally:
            self._running.discard(key)
            self._tell(key, partition, error)
            if self._ended is not None:
                self._ended.set()
            self._go_on()

    def _give_up(self, key: PartitionKey, error: ProtocolError) -> None:
        self._wanted.pop(key, None)
        self._unwanted.pop(key, None)
        self._tell(key, None, error)

    def _tell(self, key: PartitionKey, partition: Partition | None, error: ProtocolError) -> None:
        for then in self._waiting.pop(key, ()):
            then(partition, error if partition is None else None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._ended = self._ended or asyncio.Event()
            self._ended.clear()
            await self._ended.wait()
