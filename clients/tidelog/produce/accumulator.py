"""Accepts loose records into the open gathering of a producer, and hands it over to lanes when its time has come.

That is when a lane could send something at once, or when it is full. While each partition waits for an answer, records
go on gathering, so batches grow as much as the node makes them wait (see `partition_queue.py`). Room in the buffer is
reserved for a whole batch when a gathering is opened, and what is not used of it is given back when it is shut.

Nothing overtakes: what is accepted otherwise (columns, or for who stands in line for room) first has the gathering
handed over, or shut so that nobody joins it past the line.

Handing over makes loads of a gathering: each record goes to a lane, all to one where that can be, else by one sort.
Few records are placed one by one, as lists. Many become columns first: their keys are hashed as a column, and one
stable sort of the partition numbers and one `take` bring those of a partition together, in the order in which they were
given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.base.fork_safety import shut_behind_fork
from tidelog.errors import TidelogError
from tidelog.produce.batches import RECORD_OVERHEAD_BYTES, ColumnsLoad, Load, LooseLoad
from tidelog.produce.buffer_memory import Room
from tidelog.produce.open_batch import Gathering, LooseRows, loose_size_bytes, shut_gathering
from tidelog.produce.partition_queue import LaneOptions
from tidelog.produce.partition_queues import Lanes
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.record_preparation import Taken
from tidelog.produce.sender import Sender
from tidelog.produce.splitting import by_target
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.partitioner import partition_column, partition_for_key, partition_list

COLUMNS_MIN: Final = 128
"""From so many records on, columns are cheaper than going from record to record."""


ANYWHERE: Final = -1
"""Instead of a partition: the one with the fewest bytes under way."""


class Gatherer:
    """The open gathering of one producer; belongs to one event loop.

    Args:
        room: the producer's buffer.
        lanes: where records go.
        options: of the lanes: a gathering is never larger than a batch.
        delivery_timeout_s: when records are given up.
        shared: whether plain records may join without a look.
        settled: is told of records that failed before they had a lane.
        meter: the same; None: nobody counts.

    Attributes:
        gathering: what has gathered; None if there is nothing. An attribute, since it is looked at for every batch.
        open: what plain records may join without a look, as far as its `left_bytes` go.
    """

    def __init__(
        self,
        room: Room,
        lanes: Lanes,
        options: LaneOptions,
        *,
        delivery_timeout_s: float,
        shared: bool,
        settled: Callable[[Load], None],
        meter: ProducerMeter | None = None,
    ) -> None:
        self._room = room
        self._lanes = lanes
        # So many of the smallest records are as many as a batch may have.
        self._capacity_bytes = min(options.batch_bytes, options.batch_records * RECORD_OVERHEAD_BYTES)
        self._delivery_timeout_s = delivery_timeout_s
        self._shared = shared
        self._settled = settled
        self._meter = meter
        self._shut = shut_gathering()
        self.gathering: Gathering | None = None
        self._partition_count = 1
        self._sender: Sender | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.open = self._shut
        self._failure: TidelogError | None = None
        shut_behind_fork(self, Gatherer.shut_behind_fork)

    def shut_behind_fork(self) -> None:
        """Let nothing join without a look."""
        self.open = self._shut

    @property
    def capacity_bytes(self) -> int:
        """How large a gathering grows."""
        return self._capacity_bytes

    @property
    def reserved_bytes(self) -> int:
        """How much of the buffer is taken for records that have not come yet."""
        return 0 if self.gathering is None else max(0, self.gathering.left_bytes)

    def bind(self, sender: Sender, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; before that nothing is accepted."""
        self._sender, self._loop = sender, loop

    def accept(
        self, record: Taken, partition_count: int, *, room_taken: bool = False, claiming: bool = False
    ) -> tuple[Gathering, int] | None:
        """Let a record join; return where it is, or None if there is no room or others stand in line for it.

        Args:
            record: checked.
            partition_count: of the topic, as far as is known now.
            room_taken: the caller has its turn, and took the room for this record.
            claiming: it may be who waited for room before, and is let past the line now.
        """
        gathering, size_bytes = self.gathering, record.size_bytes
        if gathering is not None:
            if self.make_way(record):
                gathering = None
            elif gathering.left_bytes >= size_bytes:
                gathering.left_bytes -= size_bytes
                return gathering, gathering.add(*record)
            else:
                self.freeze()
        if not room_taken and not self._room.take(size_bytes, claiming=claiming):
            return None
        self._partition_count = max(self._partition_count, partition_count)
        if gathering is None:
            # Whether more will join, nobody knows: the first one opens it, and the second reserves room for all.
            gathering = self._begin(timestamped=record.timestamp_us is not None)
            gathering.granted_bytes = size_bytes
            return gathering, gathering.add(*record)
        gathering.granted_bytes += size_bytes
        index = gathering.add(*record)
        self._thaw(gathering)
        return gathering, index

    def accept_rows(self, rows: LooseRows, partition_count: int) -> tuple[Gathering, int] | None:
        """Let records join, all of them or none; return where the first is.

        None if there is no room, other callers wait for room, or the records exceed a gathering.
        """
        size_bytes, timestamped = rows.size_bytes(), rows.timestamps_us is not None
        if size_bytes > self._capacity_bytes:
            return None
        gathering = self.gathering
        if gathering is not None:
            if self._make_way(size_bytes, timestamped=timestamped):
                gathering = None
            elif gathering.left_bytes >= size_bytes:
                gathering.left_bytes -= size_bytes
                return gathering, gathering.extend(rows)
            else:
                self.freeze()
        if not self._room.take(size_bytes):
            return None
        self._partition_count = max(self._partition_count, partition_count)
        if gathering is None:
            gathering = self._begin(timestamped=timestamped)
            gathering.granted_bytes = size_bytes
            return gathering, gathering.extend(rows)
        gathering.granted_bytes += size_bytes
        index = gathering.extend(rows)
        self._thaw(gathering)
        return gathering, index

    def make_way(self, record: Taken) -> bool:
        """Hand over what a record does not fit, and say whether that was so.

        What is full leaves at once: the caller may be a loop that lets nobody else run.
        """
        return self._make_way(record.size_bytes, timestamped=record.timestamp_us is not None)

    def _make_way(self, size_bytes: int, *, timestamped: bool) -> bool:
        gathering = self.gathering
        if gathering is None or (
            gathering.size_bytes + size_bytes <= self._capacity_bytes
            and (gathering.timestamps_us is not None) == timestamped
        ):
            return False
        self.hand_over(full=True)
        assert self._sender is not None
        self._sender.serve_now()
        return True

    def freeze(self) -> None:
        """Let nothing join without a look, and give back what is reserved for it."""
        self.open = self._shut
        if self.gathering is not None:
            unused_bytes = self.gathering.shut()
            if unused_bytes:
                self._room.give_back(unused_bytes)

    def offer(self) -> None:
        """Hand over what has gathered if a lane could send it at once."""
        if self.gathering is not None and not self._lanes.all_flying(self._partition_count):
            self.hand_over()

    def hand_over(self, *, full: bool = False) -> None:
        """Give what has gathered to lanes, and wake them.

        Args:
            full: no more would have fitted.
        """
        self.freeze()
        gathering, self.gathering = self.gathering, None
        if gathering is not None:
            self._place(gathering, self._partition_count, full=full)

    def adopt(self, gathering: Gathering, partition_count: int) -> None:
        """Take over what gathered elsewhere, behind what gathered here."""
        self.hand_over()
        assert self._loop is not None
        gathering.deadline = self._loop.time() + self._delivery_timeout_s
        self._room.force(gathering.size_bytes)
        if self._failure is not None:
            self._fail(gathering, self._failure)
        else:
            self._place(gathering, partition_count, full=False)

    def _place(self, gathering: Gathering, partition_count: int, *, full: bool) -> None:
        """Give records to lanes whose room in the buffer is taken, and wake them."""
        assert self._sender is not None
        if gathering.count > 1:
            gathering.fill_up()
        size_bytes = gathering.size_bytes
        partition = whole_for(gathering, partition_count)
        if partition is None:
            parts = split(gathering, partition_count, lambda: self._lanes.least_loaded(partition_count, 0).partition)
            loads = parts.loads
            # As columns they take less than as objects.
            self._room.give_back(size_bytes - sum(load.size_bytes for load in loads))
        else:
            if partition == ANYWHERE:
                partition = self._lanes.least_loaded(partition_count, size_bytes).partition
            loads = [whole(gathering, partition, full=full)]
        for load in loads:
            lane = self._lanes.lane(load.delivery.partition)
            lane.add(load)
            self._sender.wake(lane)

    def fail(self, error: TidelogError) -> None:
        """Give up what has gathered, and what is to be adopted from now on."""
        self._failure = error
        self.freeze()
        gathering, self.gathering = self.gathering, None
        if gathering is not None:
            self._fail(gathering, error)

    def _fail(self, gathering: Gathering, error: TidelogError) -> None:
        gathering.fill_up()
        load = whole(gathering, ANYWHERE, full=False)
        load.delivery.fail(error)
        self._settled(load)
        if self._meter is not None:
            self._meter.failed([load], error)
            self._meter.weigh()

    def _begin(self, *, timestamped: bool) -> Gathering:
        assert self._sender is not None
        assert self._loop is not None
        deadline = self._loop.time() + self._delivery_timeout_s
        gathering = self.gathering = Gathering(deadline=deadline, timestamped=timestamped)
        self._sender.wake_soon()
        return gathering

    def _thaw(self, gathering: Gathering) -> None:
        """Let plain records join without a look, unless somebody would be overtaken."""
        if not self._shared or self._room.is_awaited or gathering.timestamps_us is not None:
            return
        if gathering.left_bytes < 0:
            more_bytes = min(self._capacity_bytes - gathering.size_bytes, self._room.free_bytes)
            if more_bytes <= 0:
                return
            self._room.take(more_bytes)
            gathering.grant(more_bytes)
        self.open = gathering


class Parts(NamedTuple):
    """Loads, one a partition, and the numbers of the records in the order of the loads."""

    loads: list[Load]
    order: Sequence[int]


def whole_for(gathering: Gathering, partition_count: int) -> int | None:
    """Return the partition that all records go to, `ANYWHERE`, or None where they have to be split."""
    partitions, count = gathering.partitions, gathering.count
    if partitions:
        first = partitions[0]
        return first if first is not None and partitions.count(first) == count else None
    if not gathering.keys:
        return ANYWHERE
    if partition_count == 1:
        return 0
    return partition_for_key(gathering.keys[0] or b"", partition_count) if count == 1 else None


def whole(gathering: Gathering, partition: int, *, full: bool) -> LooseLoad:
    """Return all records of a gathering that is filled up as one load; the gathering knows where they are."""
    load = LooseLoad(
        gathering.values,
        partition=partition,
        deadline=gathering.deadline,
        size_bytes=gathering.size_bytes,
        keys=gathering.keys,
        headers=gathering.headers,
        tags=gathering.tags,
        timestamps_us=gathering.timestamps_us,
        full=full,
    )
    load.delivery.traces = gathering.traces
    gathering.placed_whole(load.delivery)
    return load


def split(gathering: Gathering, partition_count: int, keyless: Callable[[], int]) -> Parts:
    """Return the records of a gathering that is filled up, a load for each partition; the gathering knows which.

    Args:
        gathering: with keys, or with partitions for some records.
        partition_count: of the topic.
        keyless: chooses the partition of the records that have neither.
    """
    parts = (_columns if gathering.count >= COLUMNS_MIN else _lists)(gathering, partition_count, keyless)
    ends: list[int] = []
    for load in parts.loads:
        load.delivery.traces = gathering.traces
        ends.append((ends[-1] if ends else 0) + load.count)
    gathering.placed_split([load.delivery for load in parts.loads], ends, parts.order)
    return parts


def _lists(gathering: Gathering, partition_count: int, keyless: Callable[[], int]) -> Parts:
    count = gathering.count
    keys = gathering.keys or [None] * count
    anywhere = -1
    targets: list[int] = []
    for key, given in zip(keys, gathering.partitions or [None] * count, strict=True):
        if given is not None:
            targets.append(given)
        elif key is not None:
            targets.append(partition_for_key(key, partition_count))
        else:
            anywhere = keyless() if anywhere < 0 else anywhere
            targets.append(anywhere)
    order = sorted(range(count), key=targets.__getitem__)
    headers, tags = gathering.headers or [()] * count, gathering.tags or [None] * count
    sizes = [loose_size_bytes(*record) for record in zip(gathering.values, keys, headers, tags, strict=True)]
    loads: list[Load] = []
    for partition, group in groupby(order, targets.__getitem__):
        members = list(group)
        loads.append(
            LooseLoad(
                [gathering.values[index] for index in members],
                partition=partition,
                deadline=gathering.deadline,
                size_bytes=sum([sizes[index] for index in members]),
                keys=[gathering.keys[index] for index in members] if gathering.keys else None,
                headers=[gathering.headers[index] for index in members] if gathering.headers else None,
                tags=[gathering.tags[index] for index in members] if gathering.tags else None,
                timestamps_us=(
                    [gathering.timestamps_us[index] for index in members] if gathering.timestamps_us else None
                ),
            )
        )
    return Parts(loads, order)


def _columns(gathering: Gathering, partition_count: int, keyless: Callable[[], int]) -> Parts:
    columns = columns_of(
        gathering.values,
        keys=gathering.keys or None,
        headers=gathering.headers or None,
        tags=gathering.tags or None,
        timestamps_us=gathering.timestamps_us or None,
    )
    hashed = None
    if gathering.keys:
        hashed = partition_list(gathering.keys, partition_count)
        if hashed is None:
            hashed = partition_column(columns.column("key"), partition_count)
    given: Any = pa.array(gathering.partitions, pa.int32()) if gathering.partitions else None
    targets: Any = hashed if given is None else given if hashed is None else pc.coalesce(given, hashed)
    routed = by_target(columns, targets, keyless)
    loads: list[Load] = []
    for partition, rows, size_bytes in routed.pieces:
        assert partition is not None, "some have a key or a partition, so that all are sorted"
        loads.append(ColumnsLoad(rows, partition=partition, deadline=gathering.deadline, size_bytes=size_bytes))
    return Parts(loads, routed.order.to_numpy())  # type: ignore[arg-type]  # indexed, and asked for its length
