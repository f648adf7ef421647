"""Detection of rows that an earlier attempt of a micro-batch stored under task numbers without rows in this attempt.

A task checks the rows that earlier attempts stored under its own number. If the number of tasks has changed, rows move
to other tasks: some tasks detect that rows of their earlier attempt are missing, but no task checks the numbers that
have no rows now or no longer exist. Those rows would be duplicated without notice.

Tasks do not know how many there are, so the driver checks when all are done, and only if there was an earlier attempt:
a topic keeps a registry of the tasks of each micro-batch, and exactly one task finds the registry empty unless an
earlier attempt had started (`tidelog.produce.work_registry`). The driver checks all registered numbers that did not
write this time, separately for each topic, because the rows of a topic may have moved between tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.write_options import WriteOptions
from pyspark_tidelog.write_task import TaskStart
from tidelog import Client
from tidelog.produce.work import Work

AT_ONCE: Final = 64
"""Number of tasks that are checked together, with one search for their stored rows."""


def tasks_to_check(starts: Mapping[int, Sequence[TaskStart]], tasks: int) -> dict[str, list[int]]:
    """Return by topic the tasks whose earlier attempts must be checked.

    Args:
        starts: the topics that each task wrote to, by task number.
        tasks: number of tasks, including those without rows.
    """
    writers: dict[str, dict[int, TaskStart]] = {}
    for number, topics in starts.items():
        for one in topics:
            writers.setdefault(one.topic, {})[number] = one
    by_topic = {}
    for topic, wrote in sorted(writers.items()):
        # An earlier attempt counts even if a task was the first in the registry, because older versions did not use the
        # registry.
        if not any(one.is_first for one in wrote.values()) or any(one.was_tried for one in wrote.values()):
            end = max(tasks, *(one.tasks for one in wrote.values()))
            by_topic[topic] = [number for number in range(end) if number not in wrote]
    return by_topic


async def refuse_changed_tasks(
    options: WriteOptions, starts: Mapping[int, Sequence[TaskStart]], tasks: int, work_of: Callable[[int], Work]
) -> None:
    """Refuse a micro-batch whose earlier attempt had other tasks; running tasks of that attempt are fenced.

    Args:
        starts: the topics that each task wrote to, by task number.
        tasks: number of tasks, including those without rows.
        work_of: returns the identity of a task's work, by the task's number.

    Raises:
        ChangedRowsError: an earlier attempt stored rows under a task number that wrote nothing this time.
        TidelogError: a request to the cluster failed.
    """
    tasks_by_topic = tasks_to_check(starts, tasks)
    if not any(tasks_by_topic.values()):
        return
    async with Client(options.access.bootstrap, **options.access.client_options) as client:
        for topic, numbers in tasks_by_topic.items():
            for start in range(0, len(numbers), AT_ONCE):
                rows = await _stored_by(client, topic, map(work_of, numbers[start : start + AT_ONCE]))
                if rows:
                    raise ChangedRowsError(
                        f"topic {topic!r}: an earlier attempt of this micro-batch divided its rows among tasks "
                        f"differently from this attempt ({tasks} tasks), so at least {rows} of its rows are stored "
                        "twice. To continue with the duplicates, set failOnChangedRows to 'false'. To keep the tasks "
                        "unchanged across restarts, set spark.sql.adaptive.streaming.stateless.enabled to false, and "
                        "do not change spark.sql.shuffle.partitions and minPartitions."
                    )


async def _stored_by(client: Client, topic: str, works: Iterable[Work]) -> int:
    """Fence the earlier attempts of some tasks, and return how many rows these attempts have stored."""
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
