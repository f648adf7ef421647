"""Commits of a group member, with an outcome per partition.

A position of a partition that belongs to another member is refused; the others are stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.coordinators import at_coordinator, note_forwarded
from tidelog.cluster.routing import Router
from tidelog.errors import (
    ClosedError,
    MemberFencedError,
    TidelogError,
    UnknownTopicError,
    describe_error,
    error_of,
)
from tidelog.groups.losses import Losses
from tidelog.groups.membership import Membership
from tidelog.model import Committed, TopicPartition
from tidelog.requests.conversions import check_position, committed_of
from tidelog.requests.list_offsets import beyond_ends
from tidelog.requests.paging import in_requests
from tidelog.requests.partial_results import Commits
from tidelog.subscriptions.cursor import SkippedRange
from tidelog_proto import broker_pb2 as pb

_log: Final = logging.getLogger("tidelog.consumer")


class GroupCommits:
    """Stores the positions of a consumer, across its successive memberships of one group.

    Args:
        topic_ids: returns name -> id of the topics that are read.
        membership: returns the current membership; None while the consumer is not a member.

    Attributes:
        losses: the partitions that were lost with uncommitted records.
    """

    def __init__(
        self,
        router: Router,
        topic_ids: Callable[[], Mapping[str, bytes]],
        membership: Callable[[], Membership | None],
        group: str,
    ) -> None:
        self.losses = Losses(group)
        self._group = group
        self._router = router
        self._topic_ids = topic_ids
        self._membership = membership
        self._stored_positions: dict[TopicPartition, int] = {}
        self._in_flight = 0
        self._none_in_flight = asyncio.Event()
        self._none_in_flight.set()
        self._closed = False

    def began(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note the positions at which the member begins to read partitions; no larger positions are stored yet."""
        self._stored_positions.update(positions)

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition that the member no longer reads."""
        self._stored_positions.pop(partition, None)

    def moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions that are larger than the stored ones."""
        return {where: offset for where, offset in positions.items() if offset > self._stored_positions.get(where, -1)}

    def after_skipped(self, skipped: Mapping[TopicPartition, SkippedRange]) -> dict[TopicPartition, int]:
        """Return the positions after skipped records, where every delivered record before them is committed."""
        stored = self._stored_positions
        return {
            where: each.end
            for where, each in skipped.items()
            if each.has_records and each.start <= stored.get(where, -1) < each.end
        }

    def check_open(self) -> None:
        """Refuse to commit after `close`.

        Raises:
            ClosedError: the consumer was closed.
        """
        if self._closed:
            raise ClosedError(
                f"this consumer was closed and has left group {self._group!r}; nothing was committed. Commit before "
                "close()"
            )

    async def close(self, timeout_s: float) -> None:
        """Refuse further commits, and wait for those in flight; at most `timeout_s`."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._none_in_flight.wait()

    async def store(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        note: str = "",
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> Commits:
        """Store positions durably; each position succeeds or fails independently of the others.

        Args:
            positions: partition -> next offset.
            note: see `Consumer.commit`.
            topic_ids: name -> id of the topics of the positions; None for the topics that are read now.

        Raises:
            ClosedError: the consumer was closed.
            MemberFencedError: the consumer is not a member.
            InvalidRequestError: an offset or partition is invalid.
            TidelogError: no node could store them, or the outcome is unknown.
        """
        self.check_open()
        if not positions:
            return Commits({}, {})
        for where, offset in positions.items():
            check_position(where, offset)
        membership = self._membership()
        if membership is None or not membership.is_joined:
            raise MemberFencedError(
                f"this consumer is currently not a member of group {self._group!r}; nothing was committed. The "
                "consumer joins by itself; commit again then"
            )
        self._in_flight += 1
        self._none_in_flight.clear()
        try:
            return await self._store(membership, positions, note, topic_ids)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._none_in_flight.set()

    async def _store(
        self,
        membership: Membership,
        positions: Mapping[TopicPartition, int],
        note: str,
        topic_ids: Mapping[str, bytes] | None,
    ) -> Commits:
        # A snapshot: a topic may be recreated under its name while the request is in flight.
        ids = dict(self._topic_ids() if topic_ids is None else topic_ids)
        held, failed = dict[TopicPartition, Committed](), dict[TopicPartition, TidelogError]()
        failed |= {where: _not_read_error(where, membership.group) for where in positions if where.topic not in ids}
        failed |= await self._beyond_ends(positions, ids)
        to_store = [(where, offset) for where, offset in positions.items() if where not in failed]
        for part in in_requests(to_store):
            commits = await self._store_some(membership, part, ids, note)
            held |= commits.held
            failed |= commits.failed
            self.losses.committed({where: each.next_offset for where, each in commits.held.items()})
        now = self._topic_ids()
        self._stored_positions |= {
            where: positions[where] for where in held if now.get(where.topic) == ids[where.topic]
        }
        return Commits(held, failed)

    async def _beyond_ends(
        self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
    ) -> dict[TopicPartition, TidelogError]:
        """Return the errors of positions past the log end; see `list_offsets.beyond_ends`."""
        by_topic: dict[str, dict[int, int]] = {}
        for where, offset in self.moved(positions).items():
            if where.topic not in ids:
                continue
            by_topic.setdefault(where.topic, {})[where.partition] = offset
        errors: dict[TopicPartition, TidelogError] = {}
        for topic, of_topic in by_topic.items():
            refused = await beyond_ends(self._router, topic, ids[topic], of_topic)
            errors |= {TopicPartition(topic, number): error for number, error in refused.items()}
        return errors

    async def _store_some(
        self, membership: Membership, positions: list[tuple[TopicPartition, int]], ids: Mapping[str, bytes], note: str
    ) -> Commits:
        def entry(where: TopicPartition, offset: int) -> pb.CommitEntry:
            topic_id = ids[where.topic]
            return pb.CommitEntry(
                topic_id=topic_id,
                partition=where.partition,
                next_offset=offset,
                note=note,
                record_epoch=self._router.read_epochs.at(topic_id, where.partition, offset),
            )

        request = pb.Commit(group=membership.group, member_id=membership.member_id, generation=membership.generation)
        request.entries.extend(entry(where, offset) for where, offset in positions)

        async def ask(connection: Connection) -> tuple[list[pb.CommittedResult], str]:
            reply = (await self._router.call(connection, pb.Envelope(commit=request))).envelope.commit_reply
            note_forwarded(self._router, reply)
            return results_of(reply.results, len(positions), connection), connection.name

        results, node = await self._router.retrying(
            lambda: at_coordinator(self._router, membership.group, ask),
            repeatable=True,
            about=f"group {membership.group!r}",
        )
        commits = Commits({}, {})
        names = {ids[where.topic]: where.topic for where, _ in positions}
        for (where, _), result in zip(positions, results, strict=True):
            if result.HasField("error"):
                # A node's message contains the topic id; users know the name.
                result.error.message = result.error.message.replace(ids[where.topic].hex(), repr(where.topic))
                commits.failed[where] = error_of(result.error, node)
            else:
                commits.held[where] = committed_of([result], names)[0]
        return commits


def _not_read_error(where: TopicPartition, group: str) -> MemberFencedError:
    return MemberFencedError(
        f"cannot commit {where.topic}/{where.partition} as a member of group {group!r}: this consumer does not read "
        f"topic {where.topic!r}"
    )


async def store_or_log(commits: GroupCommits, positions: Mapping[TopicPartition, int], group: str) -> None:
    """Store the positions that have moved; log errors, because no call of the application waits for them."""
    moved = commits.moved(positions)
    if not moved:
        return
    try:
        failed = (await commits.store(moved)).failed
    except TidelogError as error:
        reason = describe_error(error)
        _log.warning(
            "group %r: the positions of %d partitions were not stored; unless a later commit stores them, their "
            "records are delivered again: %s",
            group,
            len(moved),
            reason,
        )
        return
    refused = {where: error for where, error in failed.items() if not isinstance(error, UnknownTopicError)}
    if refused:
        where, why = next(iter(refused.items()))
        _log.warning(
            "group %r: the positions of %d partitions were not stored, among them that of %s/%d: %s",
            group,
            len(refused),
            *where,
            describe_error(why),
        )


async def store_periodically(
    commits: GroupCommits, processed: Callable[[], Mapping[TopicPartition, int]], interval_s: float, group: str
) -> None:
    """Store the processed positions every `interval_s`."""
    while True:
        await asyncio.sleep(interval_s)
        await store_or_log(commits, processed(), group)
