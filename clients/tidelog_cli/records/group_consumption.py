"""`tidelog consume --group G --follow`: consumption as a group member, so that several processes share a topic.

Printed records are committed every second, when partitions are revoked, and at the end. A batch is printed whole, or in
part if --max ends it; an interrupted batch is not committed.
"""

from __future__ import annotations

import contextlib
import shlex
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
from tidelog_cli.records.record_selection import RecordSelection

COMMIT_PERIOD_S: Final = 1.0


async def follow_as_member(
    client: Client,
    topic: str,
    group: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime,
    selection: RecordSelection,
    max_records: int | None,
    write: Callable[[ConsumedBatch, int], None],
) -> None:
    """Print the records of this member's partitions until the maximum is reached or the command is interrupted.

    Args:
        start: the start in partitions in which the group has no committed position.
        selection: only records that match.
        max_records: maximum number of records to print; None for no limit.
        write: prints the given number of records from the start of a batch; may block.
    """

    async def keep_beginnings(partitions: frozenset[TopicPartition]) -> None:
        """Commit the starting positions unless they are the earliest ones, and report the assigned partitions.

        Without the commit, "latest" would be a different offset in the next run.
        """
        starts = {where: offset for where, offset in consumer.position().items() if where in partitions}
        if start != "earliest":
            await consumer.commit(starts)
        numbers = ", ".join(str(where.partition) for where in sorted(partitions))
        note(f"tidelog: group {group} assigned partitions {numbers} of {topic} to this member")

    wish = Group(group, commit_interval_s=COMMIT_PERIOD_S, on_assigned=keep_beginnings)
    left = max_records
    async with client.consumer(topic, group=wish, start=start, **selection) as consumer:
        async for batch in consumer.batches():
            count = len(batch) if left is None else min(left, len(batch))
            await call_in_background(partial(write, batch, count))
            if left is None:
                continue
            left -= count
            if left == 0:
                behind = batch.batch.end_offset if count == len(batch) else batch.batch.offset_list()[count]
                # The partition was revoked: another member prints the batch.
                with contextlib.suppress(MemberFencedError):
                    await consumer.commit({TopicPartition(topic, batch.partition): behind})
                await consumer.abort()  # The rest of the batch is not committed.
                return


async def check_nobody_shares(client: Client, group: str) -> None:
    """Check that the group has no members, so that it accepts commits of a reader that does not join it.

    Raises:
        CommandFailed: the group has members, and only they can commit.
    """
    try:
        members = (await insisting(lambda: client.groups.describe(group))).members
    except UnknownGroupError:
        return
    if members:
        raise shared(group)


def shared(group: str) -> CommandFailed:
    """Return the error for a group that has members."""
    return CommandFailed(
        f"group {group!r} has members, and only they can commit: join it with --follow and without --partition, use "
        f"another --group, or stop its members first (`tidelog group describe {shlex.quote(group)}` lists them)"
    )
