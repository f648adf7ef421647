"""Where a subscription begins in each partition of its topic."""

from __future__ import annotations

import contextlib
from typing import Final, Literal, NamedTuple

from tidelog.errors import ForbiddenError, GroupNotEmptyError
from tidelog.model import Offset, Partition
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem
from tidelog_gateway.resume_tokens import Scope, positions_in
from tidelog_gateway.websocket.messages import AtTime, Sub

PARTITIONS_SHOWN_MAX: Final = 20
"""Partitions that an error names, at most."""


class Beginning(NamedTuple):
    """The scope of a subscription, and the first offset of each partition."""

    scope: Scope
    positions: dict[int, int]


async def beginning_of(gateway: Gateway, sub: Sub, key: bytes | None) -> Beginning:
    """Find the first offset to deliver of every partition.

    In this order: `resume`, `resume_token`, the position that the group has committed, `from`. A partition that a token
    does not know was added since the token was made, and begins at its first record. Where a group begins at `from`,
    the position is committed, so that the next subscription of the group misses nothing published in between.

    Args:
        gateway: the gateway.
        sub: the request.
        key: the key to filter by, as bytes.

    Raises:
        Problem: 410 for an offset that is gone and a topic that was created again; 422 for an offset that does not
            exist yet, a token that cannot be used, or `resume` without a position for a partition that would begin at
            its end.
        TidelogError, ProtocolError: the topic, a partition to resume or the group is wrong, or no node answers.
    """
    topic = await gateway.client.topic(sub.topic)
    scope = Scope(sub.topic, topic.topic_id, key, sub.tag)
    partitions = {partition.partition: partition for partition in topic.partitions}
    positions: dict[int, int] = {}
    if sub.group is not None:
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
    return Beginning(scope, dict(sorted(positions.items())))


async def _missing_positions(gateway: Gateway, sub: Sub, missing: list[int]) -> dict[int, int]:
    """Find where partitions begin of which neither the client nor its group has said a position."""
    if sub.resume_token is not None:
        start: Literal["earliest", "latest"] | AtTime = "earliest"
    elif sub.resume and sub.start == "latest":
        raise _incomplete(missing)
    else:
        start = sub.start
    found = await gateway.client.list_offsets(sub.topic, _at(start), missing)
    positions = {number: found[number].offset for number in missing}
    if sub.group is not None and start != "earliest":
        # A caller that may not commit, or a group that has members, has its positions stored by others or not at all.
        with contextlib.suppress(GroupNotEmptyError, ForbiddenError):
            await gateway.client.commit(sub.group, sub.topic, positions)
    return positions


def _incomplete(missing: list[int]) -> Problem:
    shown = ", ".join(map(str, missing[:PARTITIONS_SHOWN_MAX])) + (
        ", ..." if len(missing) > PARTITIONS_SHOWN_MAX else ""
    )
    text = (
        f'resume has no position for partitions {shown}, and "from":"latest" would skip what was published there since '
        "the client was last connected; send the newest resume_token instead, or add the positions of `ok`, or say "
        '"from":"earliest" for those partitions'
    )
    errors = [{"pointer": "/sub/resume", "detail": f"no position for partitions {shown}"}]
    return Problem(422, "incomplete_resume", text, extra={"errors": errors})


def _is_within(offset: int, partition: Partition | None) -> bool:
    return partition is not None and partition.log_start_offset <= offset <= partition.high_watermark


def _check_start(number: int, offset: int, log: Offset) -> None:
    bounds = {"log_start_offset": log.log_start_offset, "high_watermark": log.high_watermark}
    if offset < log.log_start_offset:
        text = (
            f"partition {number}: offset {offset} is gone, the log begins at {log.log_start_offset}; to accept that "
            f'the records between are lost, continue after them with "resume":{{"{number}":{log.log_start_offset}}}'
        )
        raise Problem(410, "offset_out_of_range", text, extra={**bounds, "partition": number})
    if offset > log.high_watermark:
        text = f"partition {number}: offset {offset} does not exist yet, the log ends at {log.high_watermark}"
        raise Problem(422, "offset_out_of_range", text, extra={**bounds, "partition": number})


def _at(start: Literal["earliest", "latest"] | AtTime) -> Literal["earliest", "latest"] | int:
    return start.timestamp_ms * 1000 if isinstance(start, AtTime) else start
