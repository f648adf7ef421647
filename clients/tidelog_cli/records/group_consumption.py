"""`tidelog consume --group G --follow`: a member of the group, so that several shells share a topic.

What was printed is committed, every second, when partitions go to another member, and at the end. A batch is printed
whole or, where --max ends it, in part; one that is interrupted in the middle does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final, Literal

from tidelog import Client, ConsumedBatch, Group, TopicPartition
from tidelog.errors import MemberFencedError, UnknownGroupError
from tidelog_cli.base.background_io import call_in_background
from tidelog_cli.base.end_offsets import insisting
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import note

COMMIT_PERIOD_S: Final = 1.0


async def follow_as_member(
    client: Client,
    topic: str,
    group: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime,
    key: bytes | None,
    tag: str | None,
    max_records: int | None,
    write: Callable[[ConsumedBatch, int], None],
) -> None:
    """Print what comes of the partitions that this member of the group gets, until it is interrupted.

    Args:
        client: connected.
        topic: its name.
        group: whose member this is.
        start: where to begin where the group has no position.
        key: only records with this key.
        tag: only records with this tag.
        max_records: how many records to print; None for any number.
        write: prints the first so many records of a batch; it blocks.
    """

    async def keep_beginnings(partitions: frozenset[TopicPartition]) -> None:
        """Commit where the group begins: the end of now, the next run would not find again."""
        begun = {where: offset for where, offset in consumer.position().items() if where in partitions}
        if start != "earliest":
            await consumer.commit(begun)
        numbers = ", ".join(str(where.partition) for where in sorted(partitions))
        note(f"tidelog: {group}: this member reads {topic}/{numbers} from now on")

    wish = Group(group, commit_interval_s=COMMIT_PERIOD_S, on_assigned=keep_beginnings)
    left = max_records
    async with client.consumer(topic, group=wish, start=start, key=key, tag=tag) as consumer:
        async for batch in consumer.batches():
            count = len(batch) if left is None else min(left, len(batch))
            await call_in_background(partial(write, batch, count))
            if left is None:
                continue
            left -= count
            if left == 0:
                behind = batch.batch.end_offset if count == len(batch) else batch.batch.offset_list()[count]
                with contextlib.suppress(MemberFencedError):  # then others print it again
                    await consumer.commit({TopicPartition(topic, batch.partition): behind})
                await consumer.abort()  # the rest of the batch does not count as printed
                return


async def check_nobody_shares(client: Client, group: str) -> None:
    """See that commits for a group will be taken.

    Raises:
        CommandFailed: it has members, and only they commit.
    """
    try:
        members = (await insisting(lambda: client.groups.describe(group))).members
    except UnknownGroupError:
        return
    if members:
        raise shared(group)


def shared(group: str) -> CommandFailed:
    """Return the refusal to read for a group that has members."""
    return CommandFailed(
        f"the group {group!r} has members that share its topics, and only they commit: join them with --follow and "
        "without --partition, take another --group, or stop them first (`tidelog group describe` lists them)"
    )
