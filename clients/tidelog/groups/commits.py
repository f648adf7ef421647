"""Committing as a member of a group: each partition has its own outcome, and what holds is remembered.

A position of a partition that another member has by now is refused, and those beside it are stored all the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import MemberFencedError, TidelogError, UnknownTopicError, error_of, told
from tidelog.groups.membership import Membership
from tidelog.model import Committed, TopicPartition
from tidelog.requests.conversions import check_position, committed_of
from tidelog.requests.list_offsets import beyond_ends
from tidelog.requests.paging import in_requests
from tidelog.requests.partial_results import Commits
from tidelog_proto import broker_pb2 as pb

_log: Final = logging.getLogger("tidelog.consumer")


class GroupCommits:
    """The commits of one member after the other, under one group.

    Args:
        router: the client's.
        topic_ids: topic -> id, of those that are read.
        membership: the membership by now; None while there is none.
    """

    def __init__(
        self, router: Router, topic_ids: Callable[[], Mapping[str, bytes]], membership: Callable[[], Membership | None]
    ) -> None:
        self._router = router
        self._topic_ids = topic_ids
        self._membership = membership
        self._stored: dict[TopicPartition, int] = {}

    def began(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note where partitions begin that the member reads from now on: so far they are stored, or nothing is."""
        self._stored.update(positions)

    def forget(self, partition: TopicPartition) -> None:
        """The member reads a partition no longer."""
        self._stored.pop(partition, None)

    def moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return those of some positions that are further on than what is stored."""
        return {where: offset for where, offset in positions.items() if offset > self._stored.get(where, -1)}

    async def store(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        note: str = "",
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> Commits:
        """Store positions durably; each succeeds or fails by itself.

        Args:
            positions: partition -> next offset.
            note: see `Consumer.commit`.
            topic_ids: of the topics that they are positions in, by name; None: of those that are read by now.

        Raises:
            MemberFencedError: this is no member at all.
            InvalidRequestError: an offset, or a partition, is none.
            TidelogError: nobody could store them, or whether they are stored is not known.
        """
        for where, offset in positions.items():
            check_position(where, offset)
        membership = self._membership()
        if membership is None or not membership.is_joined:
            raise MemberFencedError("this consumer is no member of its group at the moment: nothing was committed")
        # Of now: while the positions are on their way another topic may come to be read under a name.
        ids = dict(self._topic_ids() if topic_ids is None else topic_ids)
        held, failed = dict[TopicPartition, Committed](), dict[TopicPartition, TidelogError]()
        failed |= {where: _never_read(where, membership.group) for where in positions if where.topic not in ids}
        failed |= await self._beyond_ends(positions, ids)
        wanted = [(where, offset) for where, offset in positions.items() if where not in failed]
        for part in in_requests(wanted):
            commits = await self._store_some(membership, part, ids, note)
            held |= commits.held
            failed |= commits.failed
        now = self._topic_ids()
        self._stored |= {where: positions[where] for where in held if now.get(where.topic) == ids[where.topic]}
        return Commits(held, failed)

    async def _beyond_ends(
        self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes]
    ) -> dict[TopicPartition, TidelogError]:
        """Return why positions that somebody has made up are not stored; see `offset_search.beyond_ends`."""
        by_topic: dict[str, dict[int, int]] = {}
        for where, offset in self.moved(positions).items():
            if where.topic not in ids:
                continue
            by_topic.setdefault(where.topic, {})[where.partition] = offset
        found: dict[TopicPartition, TidelogError] = {}
        for topic, of_topic in by_topic.items():
            refused = await beyond_ends(self._router, topic, ids[topic], of_topic)
            found |= {TopicPartition(topic, number): error for number, error in refused.items()}
        return found

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
                record_epoch=self._router.epochs.at(topic_id, where.partition, offset),
            )

        request = pb.Commit(group=membership.group, member_id=membership.member_id, generation=membership.generation)
        request.entries.extend(entry(where, offset) for where, offset in positions)

        async def ask(connection: Connection) -> tuple[list[pb.CommittedResult], str]:
            frame = await self._router.call(connection, pb.Envelope(commit=request))
            return results_of(frame.envelope.commit_reply.results, len(positions), connection), connection.name

        results, node = await self._router.retrying(
            lambda: self._router.at_any(ask), repeatable=True, about=f"group {membership.group!r}"
        )
        commits = Commits({}, {})
        names = {ids[where.topic]: where.topic for where, _ in positions}
        for (where, _), result in zip(positions, results, strict=True):
            if result.HasField("error"):
                # A node knows topics by their ids, of which nobody has heard.
                result.error.message = result.error.message.replace(ids[where.topic].hex(), repr(where.topic))
                commits.failed[where] = error_of(result.error, node)
            else:
                commits.held[where] = committed_of([result], names)[0]
        return commits


def _never_read(where: TopicPartition, group: str) -> MemberFencedError:
    return MemberFencedError(
        f"this consumer reads nothing of the topic {where.topic!r}, so it commits no position in {where.topic}/"
        f"{where.partition} as a member of the group {group!r}: members commit what they read"
    )


async def store_or_log(commits: GroupCommits, positions: Mapping[TopicPartition, int], group: str) -> None:
    """Store what has moved of positions, as nobody asked for it; the log says what could not be stored, and why."""
    moved = commits.moved(positions)
    if not moved:
        return
    try:
        failed = (await commits.store(moved)).failed
    except TidelogError as error:
        _log.warning("%s: positions of %d partitions are not committed yet: %s", group, len(moved), told(error))
        return
    refused = {where: error for where, error in failed.items() if not isinstance(error, UnknownTopicError)}
    if refused:
        where, why = next(iter(refused.items()))
        _log.warning("%s: %d positions were not committed, that of %s/%d: %s", group, len(refused), *where, told(why))


async def store_periodically(
    commits: GroupCommits, processed: Callable[[], Mapping[TopicPartition, int]], interval_s: float, group: str
) -> None:
    """Store what the user is done with, again and again."""
    while True:
        await asyncio.sleep(interval_s)
        await store_or_log(commits, processed(), group)
