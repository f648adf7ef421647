"""What tasks of an earlier try have stored of a micro-batch that is done once more by fewer tasks.

A task looks at what an earlier try of its own number has stored. Where there are fewer tasks than before, their rows
come to others, and no task looks at what those of higher numbers have stored: it would be there twice, and nobody would
know. So the driver looks, when all tasks are done and one of them has found an earlier try. (With more tasks than
before, some task lacks rows that its earlier try has stored, and says so itself.)

Into which topic that task had written does not count: rows of some topics may be few, and were another task's. Spark
starts tasks in the order of their numbers, nearly: if none of the next few has stored something, most likely none
behind those has. A task without rows leaves nothing behind, so where many have none that is no certainty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from pyspark_tidelog.errors import ChangedRowsError
from pyspark_tidelog.write_options import WriteOptions
from tidelog import Client
from tidelog.named_producer import Work

LOOKED_AT: Final = 16
"""How many tasks behind the last one are looked at."""


async def refuse_fewer_tasks(
    options: WriteOptions, topics: Iterable[str], tasks: int, work_of: Callable[[int], Work]
) -> None:
    """Refuse a micro-batch of which an earlier try had more tasks; whoever of those is still at work is fenced.

    Args:
        options: how it was written.
        topics: those into which this one has written.
        tasks: how many there were this time.
        work_of: what a task of some number does.

    Raises:
        ChangedRowsError: tasks behind the last one have stored rows.
        TidelogError: the cluster could not be asked.
    """
    async with Client(options.access.bootstrap, **options.access.client_options) as client:
        for topic in topics:
            works = [work_of(number) for number in range(tasks, tasks + LOOKED_AT)]
            rows = sum(await asyncio.gather(*(_stored_by(client, topic, work) for work in works)))
            if rows:
                raise ChangedRowsError(
                    f"topic {topic!r}: an earlier try of this batch had more tasks than this one ({tasks}), and has "
                    f"written {rows} rows that this one did not find and has written, too. "
                    "Set 'failOnChangedRows' to 'false' to go on with both. That a query has the same tasks when it is "
                    "started again needs spark.sql.adaptive.streaming.stateless.enabled to be false, and "
                    "spark.sql.shuffle.partitions and minPartitions to be left as they are."
                )


async def _stored_by(client: Client, topic: str, work: Work) -> int:
    producer = client.producer(topic, name=work)
    try:
        await producer.begin()
        earlier = producer.earlier
        assert earlier is not None, "it has a name"
        rows = 0
        async for _, batch in earlier.batches():
            rows += batch.header.record_count
        return rows
    finally:
        await producer.abort()
