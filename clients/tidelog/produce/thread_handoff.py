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

from tidelog.base.fork_safety import shut_behind_fork
from tidelog.base.loop_thread import LoopThread
from tidelog.base.plain_callbacks import check_callback
from tidelog.errors import BufferFullError, UnknownPartitionError
from tidelog.model import TopicRoute
from tidelog.produce.accumulator import Gatherer
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES
from tidelog.produce.buffer_memory import Room
from tidelog.produce.open_batch import Gathering, OnDelivery, shut_gathering
from tidelog.produce.record_preparation import Preparation, Taken
from tidelog_proto.batch.columns import Headers

TO_BE_REFUSED: Final = 1 << 62
"""The size of what has to be looked at: it never fits."""

KEPT_S: Final = 1.0
"""For so long room is kept for a thread that has waited for it."""


class Inside(NamedTuple):
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
    preparation: Preparation
    gatherer: Gatherer
    room: Room
    route: Callable[[], TopicRoute]
    ready: Callable[[int], Awaitable[None]]


class _OfThread(threading.local):
    """What a thread was refused last, in bytes, and the room that it has waited for since then."""

    refused_bytes = 0
    kept: list[int] | None = None


class Crossing:
    """The records of one blocking producer that no loop has seen yet. Any thread may put."""

    def __init__(self, thread: LoopThread, inside: Inside) -> None:
        self._thread = thread
        self._inside = inside
        self._lock = threading.Lock()
        self._shut = shut_gathering()
        self._open = self._shut
        """What plain records join: the newest of those that wait, or one that takes nothing."""
        self._waiting: list[tuple[Gathering, int]] = []
        """Gatherings that the loop comes for, each with the number of partitions that the topic had."""
        self._of_thread = _OfThread()
        self._used_bytes = 0
        """Room that was kept for threads and is not needed any more; it is given back in the loop."""
        shut_behind_fork(self, Crossing.shut_behind_fork)

    def shut_behind_fork(self) -> None:
        """Let nothing join; a thread that is not here any more may have held the lock."""
        self._lock = threading.Lock()
        self._open = self._shut
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
    ) -> tuple[Gathering, int]:
        """Accept a record; return where it is. Errors are those of `Producer.put`."""
        plain = headers is None and tag is None and partition is None and timestamp_us is None
        if plain and type(value) is bytes and (on_delivery is None or callable(on_delivery)):
            if key is None:
                size_bytes = len(value) + RECORD_OVERHEAD_BYTES
            elif type(key) is bytes:
                size_bytes = len(value) + len(key) + RECORD_OVERHEAD_BYTES
            else:
                size_bytes = TO_BE_REFUSED
            with self._lock:
                gathering = self._open
                left_bytes = gathering.left_bytes - size_bytes
                if left_bytes >= 0:
                    gathering.left_bytes = left_bytes
                    values = gathering.values
                    index = len(values)
                    values.append(value)
                    if key is not None:
                        keys = gathering.keys
                        if len(keys) != index:
                            keys += [None] * (index - len(keys))
                        keys.append(key)
                    if on_delivery is not None:
                        gathering.call_back(index, on_delivery)
                    return gathering, index
        return self._put(self._inside.preparation.take(value, key, headers, tag, partition, timestamp_us), on_delivery)

    def ready(self) -> None:
        """Wait until there is room for what this thread was refused last; its next put has that room."""
        with self._lock:
            self._use_kept()
        size_bytes = self._of_thread.refused_bytes
        self._of_thread.kept = self._thread.run(lambda: self._keep(size_bytes))

    async def _keep(self, size_bytes: int) -> list[int]:
        """Take room for a thread as soon as there is some, for a while; in the loop."""
        self._give_back()
        await self._inside.ready(size_bytes)
        kept = [size_bytes]
        asyncio.get_running_loop().call_later(KEPT_S, self._lapse, kept)
        return kept

    def _lapse(self, kept: list[int]) -> None:
        with self._lock:
            self._used_bytes += sum(kept)
            kept.clear()
        self._give_back()

    def _use_kept(self) -> int:
        """Return how much room was kept for this thread, which is kept no longer; under the lock."""
        kept, self._of_thread.kept = self._of_thread.kept, None
        size_bytes = sum(kept or ())
        if kept:
            kept.clear()
        self._used_bytes += size_bytes
        return size_bytes

    def _give_back(self) -> None:
        """Let others have what was used, or not wanted; in the loop."""
        with self._lock:
            size_bytes, self._used_bytes = self._used_bytes, 0
        if size_bytes:
            self._inside.room.let_go(size_bytes)

    def let_pass(self) -> None:
        """Let who is putting in another thread finish: what that put the loop takes before what is run from now on."""
        with self._lock:
            pass

    def _put(self, record: Taken, on_delivery: OnDelivery | None) -> tuple[Gathering, int]:
        inside = self._inside
        check_callback("on_delivery", on_delivery)
        self._thread.check()
        route = inside.route()
        if record.partition is not None and record.partition not in route.partitions:
            raise unknown_partition(inside.topic, route, record.partition)
        # The user's function is not called under the lock: it may put something itself.
        record = inside.preparation.chosen(record, route.partition_count)
        with self._lock:
            gathering = self._place_for(record, route)
            index = gathering.add(*record)
            gathering.call_back(index, on_delivery)
            return gathering, index

    def _place_for(self, record: Taken, route: TopicRoute) -> Gathering:
        """Return a gathering in which the record's bytes are counted; under the lock."""
        inside, size_bytes = self._inside, record.size_bytes
        newest = self._waiting[-1][0] if self._waiting else None
        timestamped = record.timestamp_us is not None
        if newest is not None and (newest.timestamps_us is not None) == timestamped and newest.left_bytes >= size_bytes:
            newest.left_bytes -= size_bytes
            return newest
        if newest is not None:
            newest.shut()
            self._open = self._shut
        kept_bytes = self._use_kept()
        waiting_bytes = sum(gathering.granted_bytes for gathering, _ in self._waiting)
        taken_bytes = inside.room.taken_bytes + waiting_bytes - self._used_bytes
        free_bytes = inside.room.bytes_max - taken_bytes
        if taken_bytes and free_bytes < size_bytes > kept_bytes:
            self._of_thread.refused_bytes = size_bytes
            raise buffer_full(inside.topic)
        inside.route()  # the producer may have been closed meanwhile; behind that the loop may never come
        gathering = Gathering(deadline=0.0, timestamped=timestamped)
        gathering.grant(max(size_bytes, min(inside.gatherer.capacity_bytes, free_bytes)))
        gathering.left_bytes -= size_bytes
        if not self._waiting:
            self._thread.call(self._take_over)
        self._waiting.append((gathering, route.partition_count))
        if inside.preparation.plain and not timestamped:
            self._open = gathering
        return gathering

    def _take_over(self) -> None:
        """Take what waits into the producer; in the loop."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            self._open = self._shut
            for gathering, _ in waiting:
                gathering.shut()
        for gathering, partition_count in waiting:
            self._inside.gatherer.adopt(gathering, partition_count)
        self._give_back()


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
