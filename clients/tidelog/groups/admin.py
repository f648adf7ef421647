"""Administration of consumer groups: list, describe, delete, lag and reset of positions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, Literal, cast

from tidelog.cluster.routing import Router, repeated
from tidelog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    TidelogError,
    UnknownGroupError,
    UnknownPartitionError,
)
from tidelog.groups.membership import PartitionId
from tidelog.groups.options import ASSIGNORS, Assignor
from tidelog.model import Committed, GroupInfo, GroupMemberInfo, GroupState, Lag, Offset, TopicPartition
from tidelog.requests import committed_positions, fetch_and_commit, list_offsets
from tidelog.requests.conversions import checked_group
from tidelog.requests.needed_permission import requiring
from tidelog.requests.paging import in_requests
from tidelog.requests.partial_results import attach_done_topics
from tidelog_proto import broker_pb2 as pb

ResetTo = Literal["earliest", "latest"] | datetime | int

ROWS_AT_ONCE: Final = 512
"""Maximum number of rows that are built before the event loop runs other tasks."""

_NAMES: Final[dict[pb.Assignor, Assignor | None]] = {number: name for name, number in ASSIGNORS.items()}


class Groups:
    """Administers the consumer groups of a cluster; available as `Client.groups`.

    Args:
        router: the client's router.
        check: raises if the client cannot be used.
    """

    def __init__(self, router: Router, check: Callable[[], None]) -> None:
        self._router = router
        self._check_usable = check

    async def list(self) -> list[GroupInfo]:
        """Return all groups, sorted by name, without their members."""
        groups: list[GroupInfo] = []
        while True:
            page, more = await self.page(after=groups[-1].name if groups else "")
            groups += page
            if not more or not page:
                return groups

    async def page(self, *, after: str = "") -> tuple[Sequence[GroupInfo], bool]:
        """Return up to about a thousand groups in the order of their names, and whether more follow.

        Args:
            after: name of the last group of the previous page; it need not exist any more.
        """
        self._check_usable()
        request = pb.Envelope(group_list=pb.GroupList(after=after))
        frame = await self._router.call_any(partial(repeated, request), repeatable=True)
        reply = frame.envelope.group_list_reply
        return [_info(summary) for summary in reply.groups], reply.more

    async def describe(self, name: str) -> GroupInfo:
        """Return a group with its members.

        Raises:
            UnknownGroupError: the group has neither members nor positions.
        """
        self._check_usable()
        checked_group(name)
        request = pb.Envelope(group_describe=pb.GroupDescribe(group=name))
        frame = await self._router.call_any(partial(repeated, request), repeatable=True)
        reply = frame.envelope.group_describe_reply
        names = {topic.topic_id: topic.name for topic in reply.topics}
        return _info(reply.summary, [_member(member, names.get) for member in reply.members])

    async def delete(self, name: str) -> None:
        """Delete a group and its positions.

        Raises:
            GroupNotEmptyError: the group has members.
            UnknownGroupError: the group does not exist.
        """
        self._check_usable()
        checked_group(name)
        request = pb.Envelope(group_delete=pb.GroupDelete(group=name))
        await self._router.call_any(partial(repeated, request), repeatable=False)

    async def lag(self, name: str, topic: str | None = None) -> Sequence[Lag]:
        """Return a group's lag in every partition of the topics that it reads, or of one topic.

        Without `topic`, the result for a group that does not exist is empty. With `topic`, all records of a partition
        in which the group has no position count as lag, even if the group does not exist.
        """
        self._check_usable()
        committed = await committed_positions.committed(self._router, name, topic)
        held = {TopicPartition(each.topic, each.partition): each for each in committed}
        topics = {where.topic for where in held} | ({topic} if topic is not None else await self._read_by(name))
        lags: list[Lag] = []
        for each in sorted(topics):
            ends = await list_offsets.list_offsets(self._router, each, "latest", None)
            places = [TopicPartition(each, number) for number in sorted(ends)]
            for part in in_requests(places, ROWS_AT_ONCE):
                lags += [_lag(where, ends[where.partition], held.get(where)) for where in part]
                await asyncio.sleep(0)
        return lags

    async def reset(
        self,
        name: str,
        to: ResetTo,
        *,
        topic: str | None = None,
        partitions: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> Sequence[Lag]:
        """Move a group's positions and return the resulting positions and lag.

        Positions are stored topic by topic: if a topic fails, the error names the topics that were reset before.

        Args:
            name: name of the group, which must have no members.
            to: "earliest", "latest", a datetime with a time zone, or an offset, which is limited to the bounds of the
                log.
            topic: only this topic; None for all topics in which the group has positions.
            partitions: only these partitions of `topic`; None for all.
            dry_run: return the resulting positions without storing them; `note` and `commit_timestamp_us` are then
                those of the stored commits.

        Raises:
            GroupNotEmptyError: the group has members, which would ignore the reset.
            UnknownGroupError: the group does not exist, and `topic` is None; with `topic`, the reset creates the group.
            UnknownTopicError, UnknownPartitionError: the topic or a partition does not exist.
            InvalidRequestError: an argument is invalid.
        """
        if isinstance(to, int) and to < 0:
            raise InvalidRequestError(f"offset must be >= 0, got {to}")
        chosen = None if partitions is None else set(partitions)
        if chosen is not None and topic is None:
            raise InvalidRequestError(
                f"partition numbers need a topic, got partitions {sorted(chosen)}: pass topic=..."
            )
        if dry_run:
            await self._check_empty(name, is_made=topic is not None)
        else:
            async with requiring(self._router, pb.OP_GROUP, name, pb.RES_GROUP):
                await self._check_empty(name, is_made=topic is not None)
        rows = [row for row in await self.lag(name, topic) if chosen is None or row.partition in chosen]
        missing = (chosen or set()) - {row.partition for row in rows}
        if missing:
            raise UnknownPartitionError(
                f"topic {topic!r} does not have these partitions: {sorted(missing)}; to reset all, leave partitions out"
            )
        by_topic = {
            each: [row for row in rows if row.topic == each] for each in dict.fromkeys(row.topic for row in rows)
        }
        targets = {each: await _targets(self._router, each, of_topic, to) for each, of_topic in by_topic.items()}
        held = {} if dry_run else await self._store(name, targets)
        return [
            _moved(row, targets[each][row.partition], held.get(each, {}).get(row.partition))
            for each, of_topic in by_topic.items()
            for row in of_topic
        ]

    async def _store(self, name: str, targets: Mapping[str, dict[int, int]]) -> dict[str, dict[int, Committed]]:
        """Store the new positions of a reset topic by topic, and return the stored ones."""
        held: dict[str, dict[int, Committed]] = {}
        for topic, positions in targets.items():
            try:
                held[topic] = await fetch_and_commit.commit(
                    self._router, name, topic, positions, reset=True, note="reset"
                )
            except TidelogError as error:
                attach_done_topics(error, list(held), "reset")
                raise
        return held

    async def _check_empty(self, name: str, *, is_made: bool) -> None:
        try:
            group = await self.describe(name)
        except UnknownGroupError:
            if is_made:  # The reset creates the group, by its positions.
                return
            raise
        if group.members:
            raise GroupNotEmptyError(f"group {name!r} has {len(group.members)} members; stop the members first")

    async def _read_by(self, name: str) -> set[str]:
        """Return the topics that the group's members read; empty if the group does not exist."""
        try:
            members = (await self.describe(name)).members
        except UnknownGroupError:
            return set()
        return {where.topic for member in members for where in member.reads}


async def _targets(router: Router, topic: str, rows: list[Lag], to: ResetTo) -> dict[int, int]:
    """Return the new position of each partition, limited to the bounds of the log."""
    if isinstance(to, int):
        return {row.partition: min(max(to, row.log_start_offset), row.high_watermark) for row in rows}
    offsets = await list_offsets.list_offsets(router, topic, to, [row.partition for row in rows])
    return {number: offset.offset for number, offset in offsets.items()}


def _lag(where: TopicPartition, end: Offset, position: Committed | None) -> Lag:
    next_offset = end.log_start_offset if position is None else position.next_offset
    return Lag(
        topic=where.topic,
        partition=where.partition,
        next_offset=None if position is None else position.next_offset,
        log_start_offset=end.log_start_offset,
        high_watermark=end.high_watermark,
        lag=max(0, end.high_watermark - max(next_offset, end.log_start_offset)),
        commit_timestamp_us=None if position is None else position.commit_timestamp_us,
        note=None if position is None else position.note,
        epoch=None if position is None else position.epoch,
    )


def _moved(row: Lag, to: int, held: Committed | None) -> Lag:
    """Return a partition's lag after a reset to `to`; `held` is the stored commit, None in a dry run."""
    return Lag(
        topic=row.topic,
        partition=row.partition,
        next_offset=to,
        log_start_offset=row.log_start_offset,
        high_watermark=row.high_watermark,
        lag=max(0, row.high_watermark - to),
        commit_timestamp_us=row.commit_timestamp_us if held is None else held.commit_timestamp_us,
        note=row.note if held is None else held.note,
    )


def _info(summary: pb.GroupSummary, members: Iterable[GroupMemberInfo] = ()) -> GroupInfo:
    return GroupInfo(
        name=summary.group,
        state=cast("GroupState", summary.state),
        generation=summary.generation,
        member_count=summary.members,
        position_count=summary.positions,
        assignor=_NAMES.get(summary.assignor),
        coordinator=summary.coordinator,
        last_commit_us=summary.last_commit_us or None,
        members=tuple(members),
        creator=summary.creator or None,
    )


def _member(member: pb.GroupMember, name_of: Callable[[bytes], str | None]) -> GroupMemberInfo:
    def named(topics: Iterable[pb.TopicPartitions]) -> tuple[TopicPartition, ...]:
        places: list[PartitionId] = [(topic.topic_id, number) for topic in topics for number in topic.partitions]
        return tuple(sorted(TopicPartition(name_of(topic) or topic.hex(), number) for topic, number in places))

    return GroupMemberInfo(
        member_id=member.member_id,
        instance_id=member.wish.instance_id or None,
        client_id=member.wish.client_id,
        host=member.wish.host,
        reads=named(member.held),
        is_to_read=named(member.target),
    )
