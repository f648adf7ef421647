"""Handoff of records from threads to the event loop of a blocking client, in batches instead of single calls.

Threads append to one batch under a lock, and the first record after a handoff schedules the next one on the loop. A
busy loop finds more records when it runs, and a thread that puts faster than the loop sends fills several batches,
until the producer's buffer is full. Batches that wait for the loop count against that buffer; since the loop may accept
other records at the same time, the limit may be exceeded by one batch.

A thread that has waited for memory gets a reservation for its next `put`, because otherwise other threads could use the
memory first again and again. A thread resumes independently of the iterations of the loop (see `buffer_memory.py`), so
the reservation expires after a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from tidelog.base.fork_safety import call_in_forked_child
from tidelog.base.loop_thread import LoopThread
from tidelog.base.plain_callbacks import check_callback
from tidelog.errors import BufferFullError, NotBegunError, UnknownPartitionError
from tidelog.model import TopicRoute
from tidelog.produce.accumulator import RecordAccumulator
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES
from tidelog.produce.buffer_memory import BufferMemory
from tidelog.produce.open_batch import OnDelivery, OpenBatch, closed_batch
from tidelog.produce.record_preparation import PreparedRecord, RecordPreparation
from tidelog_proto.batch.columns import Headers

NEVER_FITS: Final = 1 << 62
"""A size that fits no batch, for a record whose key is not bytes: the record is serialized or refused first."""

RESERVATION_S: Final = 1.0
"""Time for which memory stays reserved for a thread that has waited for it in `ready`."""


class ProducerInternals(NamedTuple):
    """The parts of a producer that a thread handoff needs.

    Attributes:
        route: returns the topic's route, in any thread; raises TidelogError if nothing may be put.
        ready: waits for memory of a given size and reserves it, on the loop.
    """

    topic: str
    preparation: RecordPreparation
    accumulator: RecordAccumulator
    memory: BufferMemory
    route: Callable[[], TopicRoute]
    ready: Callable[[int], Awaitable[None]]


class _ThreadState(threading.local):
    """The state of one thread that puts records.

    Attributes:
        refused_bytes: size of the last record that did not fit the buffer.
        reservation: a list with the size of the memory that `ready` has reserved; empty after the reservation expired;
            None without a reservation.
    """

    refused_bytes = 0
    reservation: list[int] | None = None


class ThreadHandoff:
    """Collects the records of one blocking producer that the event loop has not taken yet. Thread-safe."""

    def __init__(self, thread: LoopThread, internals: ProducerInternals) -> None:
        self._thread = thread
        self._internals = internals
        self._lock = threading.Lock()
        self._closed_batch = closed_batch()
        self._directly_appendable = self._closed_batch
        """The last of the waiting batches if plain records may be appended to it, else `_closed_batch`."""
        self._waiting: list[tuple[OpenBatch, int]] = []
        """Batches for the loop, each with the topic's partition count."""
        self._thread_state = _ThreadState()
        self._ended_bytes = 0
        """Size of ended reservations, in bytes; the event loop releases their memory."""
        call_in_forked_child(self, ThreadHandoff.reset_after_fork)

    def reset_after_fork(self) -> None:
        """Drop waiting batches in a forked child, and replace the lock, which another thread may have held."""
        self._lock = threading.Lock()
        self._directly_appendable = self._closed_batch
        self._waiting = []

    def put(  # noqa: PLR0917 - the fields of a record
        self,
        value: Any,
        key: Any,
        headers: Headers | None,
        tag: str | None,
        partition: int | None,
        timestamp_us: int | None,
        on_delivery: OnDelivery | None,
    ) -> tuple[OpenBatch, int]:
        """Append a record; return its batch and index. Raises the errors of `Producer.put`."""
        plain = headers is None and tag is None and partition is None and timestamp_us is None
        if plain and type(value) is bytes and (on_delivery is None or callable(on_delivery)):
            if key is None:
                size_bytes = len(value) + RECORD_OVERHEAD_BYTES
            elif type(key) is bytes:
                size_bytes = len(value) + len(key) + RECORD_OVERHEAD_BYTES
            else:
                size_bytes = NEVER_FITS
            with self._lock:
                batch = self._directly_appendable
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
        """Wait for memory for the last record that this thread could not put, and reserve it for its next `put`."""
        with self._lock:
            self._take_reservation()
        size_bytes = self._thread_state.refused_bytes
        self._thread_state.reservation = self._thread.run(lambda: self._reserve(size_bytes))

    async def _reserve(self, size_bytes: int) -> list[int]:
        """Wait for memory and reserve it for `RESERVATION_S`. Runs on the loop."""
        self._release_unneeded()
        await self._internals.ready(size_bytes)
        reservation = [size_bytes]
        asyncio.get_running_loop().call_later(RESERVATION_S, self._expire, reservation)
        return reservation

    def _expire(self, reservation: list[int]) -> None:
        with self._lock:
            self._ended_bytes += sum(reservation)
            reservation.clear()
        self._release_unneeded()

    def _take_reservation(self) -> int:
        """End the reservation of this thread and return its size; the caller holds the lock."""
        reservation, self._thread_state.reservation = self._thread_state.reservation, None
        size_bytes = sum(reservation or ())
        if reservation:
            reservation.clear()
        self._ended_bytes += size_bytes
        return size_bytes

    def _release_unneeded(self) -> None:
        """Release the memory of reservations that were used or have expired. Runs on the loop."""
        with self._lock:
            size_bytes, self._ended_bytes = self._ended_bytes, 0
        if size_bytes:
            self._internals.memory.release_reservation(size_bytes)

    def wait_for_puts(self) -> None:
        """Wait until a `put` in progress has appended its record, so that the loop takes it before later calls."""
        with self._lock:
            pass

    def _put(self, record: PreparedRecord, on_delivery: OnDelivery | None) -> tuple[OpenBatch, int]:
        internals = self._internals
        check_callback("on_delivery", on_delivery)
        self._thread.check()
        route = internals.route()
        if record.partition is not None and record.partition not in route.partitions:
            raise unknown_partition(internals.topic, route, record.partition)
        # The partitioner is user code that may call `put`, so it is called without the lock.
        record = internals.preparation.with_partition(record, route.partition_count)
        with self._lock:
            batch = self._batch_for(record, route)
            index = batch.add(*record)
            batch.set_callback(index, on_delivery)
            return batch, index

    def _batch_for(self, record: PreparedRecord, route: TopicRoute) -> OpenBatch:
        """Return the batch for a record, with the record's memory reserved; the caller holds the lock."""
        internals, size_bytes = self._internals, record.size_bytes
        newest = self._waiting[-1][0] if self._waiting else None
        timestamped = record.timestamp_us is not None
        if (
            newest is not None
            and (newest.timestamps_us is not None) == timestamped
            and newest.remaining_bytes >= size_bytes
            and newest.rows is record.rows
        ):
            newest.remaining_bytes -= size_bytes
            return newest
        if newest is not None:
            newest.close_to_direct()
            self._directly_appendable = self._closed_batch
        reservation_bytes = self._take_reservation()
        waiting_bytes = sum(batch.reserved_bytes for batch, _ in self._waiting)
        used_bytes = internals.memory.used_bytes + waiting_bytes - self._ended_bytes
        free_bytes = internals.memory.bytes_max - used_bytes
        if used_bytes and free_bytes < size_bytes > reservation_bytes:
            self._thread_state.refused_bytes = size_bytes
            raise buffer_full(internals.topic)
        internals.route()  # Raises if the producer was closed meanwhile, because the loop may never take the batch.
        batch = OpenBatch(deadline=0.0, timestamped=timestamped, rows=record.rows)
        batch.reserve(max(size_bytes, min(internals.accumulator.capacity_bytes, free_bytes)))
        batch.remaining_bytes -= size_bytes
        if not self._waiting:
            self._thread.call(self._hand_over)
        self._waiting.append((batch, route.partition_count))
        if internals.preparation.plain and not timestamped and record.rows is None:
            self._directly_appendable = batch
        return batch

    def _hand_over(self) -> None:
        """Move the waiting batches into the accumulator. Runs on the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._directly_appendable = self._closed_batch
            for batch, _ in waiting:
                batch.close_to_direct()
        for batch, partition_count in waiting:
            self._internals.accumulator.add_batch(batch, partition_count)
        self._release_unneeded()


def not_begun(topic: str) -> NotBegunError:
    """Return the error of `put` before the producer has begun."""
    return NotBegunError(
        f"the producer of topic {topic!r} has not begun: use it in a `with` block, or call `begin()` first"
    )


def buffer_full(topic: str) -> BufferFullError:
    """Return the error of a record that does not fit the buffer."""
    return BufferFullError(
        f"the buffer of the producer of topic {topic!r} is full, or other calls wait for it: wait for `ready()`, then "
        "put again, or raise buffer_bytes"
    )


def unknown_partition(topic: str, route: TopicRoute, partition: int) -> UnknownPartitionError:
    """Return the error of a record for a partition that is not in the cached metadata; `send` refreshes it."""
    return UnknownPartitionError(
        f"topic {topic!r} has partitions 0 to {route.partition_count - 1} in this producer's metadata, not "
        f"{partition}; publish to one of these, or with `send`, which refreshes the metadata",
        retriable=True,
    )
