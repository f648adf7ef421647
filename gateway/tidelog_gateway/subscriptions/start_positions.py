"""Start offsets of a subscription in each partition of its topic."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Final, Literal, NamedTuple

from tidelog.errors import ForbiddenError, GroupNotEmptyError
from tidelog.model import Offset, Partition
from tidelog_gateway.auth.needed_permission import requiring
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.messages import AtTime, Sub
from tidelog_gateway.protocol.resume_tokens import Scope, positions_in

PARTITIONS_SHOWN_MAX: Final = 20
"""Maximum number of partitions that an error message lists."""


class StartPositions(NamedTuple):
    """Scope of a subscription, and its start offset in each partition."""

    scope: Scope
    positions: dict[int, int]


async def start_positions_of(gateway: Gateway, sub: Sub, key: bytes | None) -> StartPositions:
    """Return the start offset of every partition.

    The first of these that has an offset for the partition applies: `resume`, `resume_token`, the group's committed
    offset, `from`. A partition that is missing in a token was added to the topic after the token was made, and begins
    at its log start offset. If a group begins at `from`, and that is not `earliest`, the offset is committed, so that
    the group's next subscription also gets the records published in between.

    Args:
        key: key of the records to deliver; None: all records.

    Raises:
        Problem: 410: an offset below the log start, or a topic that was deleted and created again; 422: an offset
            beyond the log end, an invalid token, or `resume` without an offset for a partition that would begin at
            its end.
        TidelogError, ProtocolError: invalid topic, partition or group, or no node answers.
    """
    async with requiring(gateway.client, "consume", sub.topic):
        topic = await gateway.client.topic(sub.topic)
    scope = Scope(sub.topic, topic.topic_id, key, sub.tag)
    partitions = {partition.partition: partition for partition in topic.partitions}
    positions: dict[int, int] = {}
    if sub.group is not None:
        async with requiring(gateway.client, "group", sub.group, "group"):
            committed = await gateway.client.committed(sub.group, sub.topic)
        positions.update({position.partition: position.next_offset for position in committed})
    if sub.resume_token is not None:
        positions.update(positions_in(sub.resume_token, scope))
    positions.update(sub.resume)
    # A lagging node reports fewer partitions and earlier ends, so the owner decides whether an offset exists.
    doubtful = [number for number, offset in positions.items() if not _is_within(offset, partitions.get(number))]
    if doubtful:
        bounds = await gateway.client.list_offsets(sub.topic, "latest", doubtful)
        for number in doubtful:
            _check_start(number, positions[number], bounds[number])
    missing = [number for number in partitions if number not in positions]
    if missing:
        positions.update(await _missing_positions(gateway, sub, missing))
    return StartPositions(scope, dict(sorted(positions.items())))


async def _missing_positions(gateway: Gateway, sub: Sub, missing: list[int]) -> dict[int, int]:
    """Return the start offsets of partitions for which neither the client nor its group has one."""
    if sub.resume_token is not None:
        start: Literal["earliest", "latest"] | AtTime = "earliest"
    elif sub.resume and sub.start == "latest":
        raise _incomplete(missing)
    else:
        start = sub.start
    offsets = await gateway.client.list_offsets(sub.topic, _at(start), missing)
    positions = {number: offsets[number].offset for number in missing}
    if sub.group is not None and start != "earliest":
        # Errors are ignored: the caller may lack the permission, and a group with members accepts commits of members
        # only.
        with contextlib.suppress(GroupNotEmptyError, ForbiddenError):
            await gateway.client.commit(sub.group, sub.topic, positions)
    return positions


def _incomplete(missing: list[int]) -> Problem:
    listing = ", ".join(map(str, missing[:PARTITIONS_SHOWN_MAX])) + (
        ", ..." if len(missing) > PARTITIONS_SHOWN_MAX else ""
    )
    text = (
        f'resume has no offset for partitions {listing}, and "from":"latest" would skip records published there since '
        "the client was last connected; send the newest resume_token instead, add the offsets of `ok`, or send "
        '"from":"earliest" for those partitions'
    )
    errors = [{"pointer": "/sub/resume", "detail": f"has no offset for partitions {listing}"}]
    return Problem(422, "incomplete_resume", text, extra={"errors": errors})


def _is_within(offset: int, partition: Partition | None) -> bool:
    return partition is not None and partition.log_start_offset <= offset <= partition.high_watermark


def _check_start(number: int, offset: int, log: Offset) -> None:
    bounds = {"log_start_offset": log.log_start_offset, "high_watermark": log.high_watermark}
    if offset < log.log_start_offset:
        text = (
            f"partition {number}: offset {offset} was deleted, the log begins at {log.log_start_offset}; to skip the "
            f'deleted records, continue with "resume":{{"{number}":{log.log_start_offset}}}'
        )
        raise Problem(410, "offset_out_of_range", text, extra={**bounds, "partition": number})
    if offset > log.high_watermark:
        text = (
            f"partition {number}: offset {offset} does not exist yet; begin at an offset of at most "
            f"{log.high_watermark}, the end of the log"
        )
        raise Problem(422, "offset_out_of_range", text, extra={**bounds, "partition": number})


def _at(start: Literal["earliest", "latest"] | AtTime) -> Literal["earliest", "latest"] | datetime:
    return start.moment if isinstance(start, AtTime) else start
