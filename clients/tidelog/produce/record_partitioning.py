"""From a gathering to loads: which lane each record goes to, whole where it can be, else by one sort.

Few records are placed one by one, as lists. Many become columns first: their keys are hashed as a column, and one
stable sort of the partition numbers and one `take` bring those of a partition together, in the order in which they were
given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.produce.batches import ColumnsLoad, Load, LooseLoad
from tidelog.produce.open_batch import Gathering, loose_size_bytes
from tidelog.produce.splitting import by_target
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.partitioner import partition_column, partition_for_key, partition_list

COLUMNS_MIN: Final = 128
"""From so many records on, columns are cheaper than going from record to record."""


ANYWHERE: Final = -1
"""Instead of a partition: the one with the fewest bytes under way."""


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
