"""What an earlier try of a micro-batch has stored under numbers of tasks that have no rows, or do not exist, this time.

A task looks at what an earlier try of its own number has stored. With another number of tasks, their rows come to
others: some tasks lack rows that their earlier try has stored, and say so themselves; but what others had stored who
have none now, or are none now, no task looks at. It would be there twice, and nobody would know.

No task knows how many there are, so the driver looks, when all are done, and only where somebody had tried before: a
topic keeps a roll of each micro-batch, and exactly one task finds nobody on it, unless an earlier try had begun
(`tidelog.produce.work_registry`). It looks at all numbers that may be on the roll and did not write this time. Into
which topic a task had written does not count: rows of some topics may be few, and were another task's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.write_options import WriteOptions
from pyspark_tidelog.write_task import Begun
from tidelog import Client
from tidelog.produce.work import Work

AT_ONCE: Final = 64
"""How many tasks begin at a time. What those have stored that had begun before is looked for together, once."""


def tasks_to_look_at(begun: Mapping[int, Sequence[Begun]], tasks: int) -> dict[str, list[int]]:
    """Return of each topic the tasks whose earlier tries nobody has looked at, where there may be some.

    Args:
        begun: into which topics a task wrote, by its number.
        tasks: how many there were, also without rows.
    """
    writers: dict[str, dict[int, Begun]] = {}
    for number, topics in begun.items():
        for one in topics:
            writers.setdefault(one.topic, {})[number] = one
    found = {}
    for topic, wrote in sorted(writers.items()):
        # One that was tried before counts also behind a first: older versions entered nobody in a roll.
        if not any(one.is_first for one in wrote.values()) or any(one.was_tried for one in wrote.values()):
            end = max(tasks, *(one.tasks for one in wrote.values()))
            found[topic] = [number for number in range(end) if number not in wrote]
    return found


async def refuse_other_tasks(
    options: WriteOptions, begun: Mapping[int, Sequence[Begun]], tasks: int, work_of: Callable[[int], Work]
) -> None:
    """Refuse a micro-batch of which an earlier try had other tasks; whoever of those is still at work is fenced.

    Args:
        options: how it was written.
        begun: into which topics a task wrote, by its number.
        tasks: how many there were, also without rows.
        work_of: what a task of some number does.

    Raises:
        ChangedRowsError: a task that wrote nothing this time had stored rows.
        TidelogError: the cluster could not be asked.
    """
    to_look_at = tasks_to_look_at(begun, tasks)
    if not any(to_look_at.values()):
        return
    async with Client(options.access.bootstrap, **options.access.client_options) as client:
        for topic, numbers in to_look_at.items():
            for start in range(0, len(numbers), AT_ONCE):
                rows = await _stored_by(client, topic, map(work_of, numbers[start : start + AT_ONCE]))
                if rows:
                    raise ChangedRowsError(
                        f"topic {topic!r}: an earlier try of this batch had other tasks than this one ({tasks}), and "
                        f"has written at least {rows} rows that this one did not find and has written, too. "
                        "Set 'failOnChangedRows' to 'false' to go on with both. That a query has the same tasks when "
                        "it is started again needs spark.sql.adaptive.streaming.stateless.enabled to be false, and "
                        "spark.sql.shuffle.partitions and minPartitions to be left as they are."
                    )


async def _stored_by(client: Client, topic: str, works: Iterable[Work]) -> int:
    """Return how many rows earlier tries of these have stored, once all have begun."""
    producers = [client.producer(topic, name=work) for work in works]
    try:
        await asyncio.gather(*(producer.begin() for producer in producers))
        first, *others = [producer.earlier for producer in producers if producer.earlier is not None]
        rows = 0
        async for _, batch in first.batches(others):
            rows += batch.header.record_count
        return rows
    finally:
        await asyncio.gather(*(producer.abort() for producer in producers))
