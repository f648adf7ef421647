"""How records get from threads to the loop of a blocking client: whole gatherings, not one call a record.

Threads add to one gathering under a lock, and the first record in it has the loop come for it. So a loop that is busy
finds more when it comes, and a thread that puts faster than the loop sends fills one gathering after the other, until
the producer's buffer is full. What waits here counts as taken from that buffer; since the loop may accept something
else at the same moment, the bound may be passed by one gathering.

A thread that has waited for room has that taken for its next put, or others would be quicker again and again. Turns of
the loop say nothing of when a thread goes on (see `buffer_memory.py`), so the time decides how long it is kept.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tidelog.base.fork_safety import call_in_forked_child
from tidelog.base.loop_thread import LoopThread
from tidelog.base.plain_callbacks import check_callback
from tidelog.errors import BufferFullError, UnknownPartitionError
from tidelog.model import TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.open_batch import OnDelivery, OpenBatch, sealed_batch
from tidelog.produce.record_preparation import PreparedRecord, RecordPreparation
from tidelog_proto.batch.columns import Headers

NEVER_FITS: Final = 1 << 62
"""The size of what has to be looked at: it never fits."""

RESERVATION_S: Final = 1.0
"""For so long room is kept for a thread that has waited for it."""


class ProducerInternals(NamedTuple):
    """The parts of a producer that a crossing needs.

    Attributes:
        topic: its name, for errors.
        preparation: what makes records of arguments.
        gatherer: what takes over whole gatherings, in the loop.
        room: the producer's buffer.
        route: returns the topic's route, in any thread; raises where nothing may be put.
        ready: waits until there is room for so many bytes, and takes it, in the loop.
    """

    topic: str
    preparation: RecordPreparation
    accumulator: RecordAccumulator
    memory: BufferMemory
    route: Callable[[], TopicRoute]
    ready: Callable[[int], Awaitable[None]]


class _ThreadState(threading.local):
    """What a thread was refused last, in bytes, and the room that it has waited for since then."""

    refused_bytes = 0
    kept: list[int] | None = None


class ThreadHandoff:
    """The records of one blocking producer that no loop has seen yet. Any thread may put."""

    def __init__(self, thread: LoopThread, internals: ProducerInternals) -> None:
        self._thread = thread
        self._internals = internals
        self._lock = threading.Lock()
        self._sealed = sealed_batch()
        self._open = self._sealed
        """What plain records join: the newest of those that wait, or one that takes nothing."""
        self._waiting: list[tuple[OpenBatch, int]] = []
        """Gatherings that the loop comes for, each with the number of partitions that the topic had."""
        self._thread_state = _ThreadState()
        self._used_bytes = 0
        """Room that was kept for threads and is not needed any more; it is given back in the loop."""
        call_in_forked_child(self, ThreadHandoff.seal_after_fork)

    def seal_after_fork(self) -> None:
        """Let nothing join; a thread that is not here any more may have held the lock."""
        self._lock = threading.Lock()
        self._open = self._sealed
        self._waiting = []

    def put(  # noqa: PLR0917 - a record, as it is given
        self,
        value: Any,
        key: Any,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
        on_delivery: OnDelivery | None,
    ) -> tuple[OpenBatch, int]:
        """Accept a record; return where it is. Errors are those of `Producer.put`."""
        plain = headers is None and tag is None and partition is None and timestamp_us is None
        if plain and type(value) is bytes and (on_delivery is None or callable(on_delivery)):
            if key is None:
                size_bytes = len(value) + RECORD_OVERHEAD_BYTES
            elif type(key) is bytes:
                size_bytes = len(value) + len(key) + RECORD_OVERHEAD_BYTES
            else:
                size_bytes = NEVER_FITS
            with self._lock:
                batch = self._open
                remaining_bytes = batch.remaining_bytes - size_bytes
                if remaining_bytes >= 0:
                    batch.remaining_bytes = remaining_bytes
                    values = batch.values
                    index = len(values)
                    values.append(value)
                    if key is not None:
                        keys = batch.keys
                        if len(keys) != index:
                            keys += [None] * (index - len(keys))
                        keys.append(key)
                    if on_delivery is not None:
                        batch.set_callback(index, on_delivery)
                    return batch, index
        return self._put(
            self._internals.preparation.prepare(value, key, headers, tag, partition, timestamp_us), on_delivery
        )

    def ready(self) -> None:
        """Wait until there is room for what this thread was refused last; its next put has that room."""
        with self._lock:
            self._take_reservation()
        size_bytes = self._thread_state.refused_bytes
        self._thread_state.kept = self._thread.run(lambda: self._reserve(size_bytes))

    async def _reserve(self, size_bytes: int) -> list[int]:
        """Take room for a thread as soon as there is some, for a while; in the loop."""
        self._release_unneeded()
        await self._internals.ready(size_bytes)
        kept = [size_bytes]
        asyncio.get_running_loop().call_later(RESERVATION_S, self._lapse, kept)
        return kept

    def _lapse(self, kept: list[int]) -> None:
        with self._lock:
            self._used_bytes += sum(kept)
            kept.clear()
        self._release_unneeded()

    def _take_reservation(self) -> int:
        """Return how much room was kept for this thread, which is kept no longer; under the lock."""
        kept, self._thread_state.kept = self._thread_state.kept, None
        size_bytes = sum(kept or ())
        if kept:
            kept.clear()
        self._used_bytes += size_bytes
        return size_bytes

    def _release_unneeded(self) -> None:
        """Let others have what was used, or not wanted; in the loop."""
        with self._lock:
            size_bytes, self._used_bytes = self._used_bytes, 0
        if size_bytes:
            self._internals.memory.release_kept(size_bytes)

    def wait_for_puts(self) -> None:
        """Let who is putting in another thread finish: what that put the loop takes before what is run from now on."""
        with self._lock:
            pass

    def _put(self, record: PreparedRecord, on_delivery: OnDelivery | None) -> tuple[OpenBatch, int]:
        internals = self._internals
        check_callback("on_delivery", on_delivery)
        self._thread.check()
        route = internals.route()
        if record.partition is not None and record.partition not in route.partitions:
            raise unknown_partition(internals.topic, route, record.partition)
        # The user's function is not called under the lock: it may put something itself.
        record = internals.preparation.with_partition(record, route.partition_count)
        with self._lock:
            batch = self._batch_for(record, route)
            index = batch.add(*record)
            batch.set_callback(index, on_delivery)
            return batch, index

    def _batch_for(self, record: PreparedRecord, route: TopicRoute) -> OpenBatch:
        """Return a gathering in which the record's bytes are counted; under the lock."""
        internals, size_bytes = self._internals, record.size_bytes
        newest = self._waiting[-1][0] if self._waiting else None
        timestamped = record.timestamp_us is not None
        if (
            newest is not None
            and (newest.timestamps_us is not None) == timestamped
            and newest.remaining_bytes >= size_bytes
        ):
            newest.remaining_bytes -= size_bytes
            return newest
        if newest is not None:
            newest.seal()
            self._open = self._sealed
        kept_bytes = self._take_reservation()
        waiting_bytes = sum(batch.reserved_bytes for batch, _ in self._waiting)
        used_bytes = internals.memory.used_bytes + waiting_bytes - self._used_bytes
        free_bytes = internals.memory.bytes_max - used_bytes
        if used_bytes and free_bytes < size_bytes > kept_bytes:
            self._thread_state.refused_bytes = size_bytes
            raise buffer_full(internals.topic)
        internals.route()  # the producer may have been closed meanwhile; behind that the loop may never come
        batch = OpenBatch(deadline=0.0, timestamped=timestamped)
        batch.reserve(max(size_bytes, min(internals.accumulator.capacity_bytes, free_bytes)))
        batch.remaining_bytes -= size_bytes
        if not self._waiting:
            self._thread.call(self._hand_over)
        self._waiting.append((batch, route.partition_count))
        if internals.preparation.plain and not timestamped:
            self._open = batch
        return batch

    def _hand_over(self) -> None:
        """Take what waits into the producer; in the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._open = self._sealed
            for batch, _ in waiting:
                batch.seal()
        for batch, partition_count in waiting:
            self._internals.accumulator.add_batch(batch, partition_count)
        self._release_unneeded()


def buffer_full(topic: str) -> BufferFullError:
    """Return the error of a record that there is no room for."""
    return BufferFullError(
        f"the buffer of the producer of {topic!r} is full, or other calls wait for room in it: wait for `ready()`, "
        "and put again"
    )


def unknown_partition(topic: str, route: TopicRoute, partition: int) -> UnknownPartitionError:
    """Return the error of a record for a partition that is not known; whether it is there `send` asks the cluster."""
    return UnknownPartitionError(
        f"this producer knows of partitions 0 to {route.partition_count - 1} of topic {topic!r}, not {partition}",
        retriable=True,
    )
