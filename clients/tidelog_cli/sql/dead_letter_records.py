"""`tidelog sql --dead-letters`: records of JSON that are null in a column, published to another topic as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.consume.dead_letters import DeadLetters
from tidelog.model import ConsumedBatch
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.session import with_client
from tidelog_cli.sql.null_reports import NullRecord

if TYPE_CHECKING:
    from tidelog import Client


def publish_dead_letters(
    target: str, records: Sequence[NullRecord], topic_ids: Mapping[str, bytes], bootstrap: str
) -> None:
    """Publish records with their headers and, as a consumer does, headers with their origin and the reason.

    Args:
        target: the topic's name.
        records: the places of the records, each once.
        topic_ids: topic -> its id when the records were read.
        bootstrap: the value of --bootstrap.

    Raises:
        CommandFailed: a record was deleted in the meantime, with the number of records that were published before.
        TidelogError: the target does not exist, or cannot store a record.
    """

    async def work(client: Client) -> None:
        letters = DeadLetters(lambda: client.producer(target))
        try:
            for number, one in enumerate(records):
                fetched = await client.fetch(
                    one.topic,
                    one.partition,
                    one.offset,
                    end_offset=one.offset + 1,
                    max_bytes=1,
                    topic_id=topic_ids[one.topic],
                )
                found = [
                    record
                    for batch in fetched.batches
                    for record in ConsumedBatch(one.topic, one.partition, batch)
                    if record.offset == one.offset
                ]
                if not found:
                    raise CommandFailed(
                        f"{one.topic}: the record at offset {one.offset} of partition {one.partition} was deleted "
                        f"before it could be published to {target}; {number} records were published before"
                    )
                await letters.publish(found[0], one.reason)
        finally:
            await letters.close()

    if records:
        with_client(bootstrap, work)
