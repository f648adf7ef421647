"""The request LIST_OFFSETS, and the check that positions are not beyond the end of the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.fallback_replicas import ReadReplica
from tidelog.cluster.routing import Router
from tidelog.errors import OffsetOutOfRangeError, TidelogError, UnknownTopicError
from tidelog.model import Offset, TopicPartition
from tidelog.requests.conversions import At, NewestOf, list_offsets_entry, offset_of
from tidelog.requests.paging import in_requests
from tidelog.requests.record_filters import check_key
from tidelog_proto import broker_pb2 as pb

OFFSETS_PER_REQUEST: Final = 256
"""Maximum number of partitions in one request: the node may have to open each of them first."""
END_CHECK_TIMEOUT_S: Final = 2.0
"""Timeout of the check of log ends before a commit; without an answer a position is committed unchecked."""


class OffsetSearch:
    """Resolves one point in the logs of several partitions; results are kept between attempts while the topic exists.

    Because results are kept, requests for other partitions are not repeated while one partition has no owner. Only an
    owner returns the end of a log; any other replica returns an error. Other points can be resolved by any replica.

    Attributes:
        found: the results by partition.
        failures: the errors of the last attempt by partition.
    """

    def __init__(self, router: Router, topic: str, at: At | NewestOf, partitions: Iterable[int]) -> None:
        self.found: dict[int, Offset] = {}
        self.failures: dict[int, TidelogError] = {}
        self._router = router
        self._topic = topic
        self._at: At | NewestOf = at
        self._partitions = list(dict.fromkeys(partitions))

    @property
    def missing(self) -> list[int]:
        """The partitions without a result."""
        return [partition for partition in self._partitions if partition not in self.found]

    async def attempt(self) -> dict[int, Offset]:
        """Ask once for the missing partitions; return all results.

        Raises:
            TidelogError: the first failure; errors that are not retriable come first.
        """
        self.failures = {}
        groups: dict[Connection, tuple[ReadReplica, list[int]]] = {}
        for part in in_requests(self.missing, OFFSETS_PER_REQUEST):
            for partition, one in zip(part, await self._replicas(part), strict=True):
                if isinstance(one, BaseException):
                    self._record_failure([partition], one)
                else:
                    groups.setdefault(one.connection, (one, []))[1].append(partition)
        await asyncio.gather(*(self._ask_in_sequence(one, group) for one, group in groups.values()))
        if any(isinstance(failure, UnknownTopicError) for failure in self.failures.values()):
            self.found.clear()  # The name may belong to a new topic now.
        for failure in sorted(self.failures.values(), key=lambda each: each.retriable):
            raise failure
        return {partition: self.found[partition] for partition in self._partitions}

    async def _replicas(self, partitions: Sequence[int]) -> Sequence[ReadReplica | BaseException]:
        """Return the replica to ask about each partition, or the error of connecting to it.

        No task is created for a partition whose owner is already connected.
        """
        found = [self._router.fallback_replicas.owner_now(self._topic, partition) for partition in partitions]
        pairs = zip(partitions, found, strict=True)
        reaching = [self._router.reading_connection(self._topic, partition) for partition, one in pairs if one is None]
        if not reaching:
            await asyncio.sleep(0)  # other work may run between the parts of a large topic
        reached = iter(await asyncio.gather(*reaching, return_exceptions=True))
        return [next(reached) if one is None else one for one in found]

    async def _ask_in_sequence(self, replica: ReadReplica, group: list[int]) -> None:
        """Send the requests for a node one after the other; after a failure the remaining partitions fail, too."""
        for start in range(0, len(group), OFFSETS_PER_REQUEST):
            try:
                await self._ask(replica, group[start : start + OFFSETS_PER_REQUEST])
            except TidelogError as failure:
                self._record_failure(group[start:], failure)
                return

    async def _ask(self, replica: ReadReplica, group: list[int]) -> None:
        route = await self._router.topic(self._topic)
        entries = [list_offsets_entry(route.topic_id, partition, self._at) for partition in group]
        envelope = pb.Envelope(list_offsets=pb.ListOffsets(entries=entries))
        requested = [TopicPartition(self._topic, partition) for partition in group]
        frame = await self._router.call_reader(requested, replica, envelope)
        results = results_of(frame.envelope.list_offsets_reply.results, len(group), replica.connection)
        by_time = self._at not in {"earliest", "latest"}
        for partition, result in zip(group, results, strict=True):
            try:
                offset = self.found[partition] = offset_of(result, by_time=by_time)
                # Ends are comparable within one epoch only, and the owner may have changed since the last answer. An
                # answer without an epoch counts for the known epoch, and only if it is about the end.
                epoch = result.epoch if result.HasField("epoch") else None
                if epoch is not None or self._at == "latest":
                    end_offset = offset.high_watermark
                    self._router.known_ends.note(route.topic_id, partition, epoch=epoch, end_offset=end_offset)
            except TidelogError as error:
                self._router.learn_from(self._topic, error, partition)
                self.failures[partition] = error

    def _record_failure(self, partitions: Iterable[int], failure: BaseException) -> None:
        if not isinstance(failure, TidelogError):
            raise failure
        self.failures.update(dict.fromkeys(partitions, failure))


async def list_offsets(
    router: Router, topic: str, at: At | NewestOf, partitions: Iterable[int] | None
) -> dict[int, Offset]:
    """Resolve a point in the log. See `Client.list_offsets`."""
    if isinstance(at, NewestOf):
        check_key(at.key)
    numbers = list(partitions or ())
    if partitions is None:  # All partitions, including those added since the last metadata refresh.
        numbers = sorted(
            (await router.retry_for_topic(topic, lambda: router.topic_now(topic), repeatable=True)).partitions
        )
    return await router.retry_for_topic(topic, OffsetSearch(router, topic, at, numbers).attempt, repeatable=True)


async def ends_of(router: Router, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
    """Return the ends of logs from their owners; partitions whose owner does not answer are omitted."""
    topics: dict[str, list[int]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    ends: dict[TopicPartition, Offset] = {}
    for topic, numbers in topics.items():
        search = OffsetSearch(router, topic, "latest", numbers)
        with contextlib.suppress(TidelogError):
            await search.attempt()
        ends |= {TopicPartition(topic, number): offset for number, offset in search.found.items()}
    return ends


async def beyond_ends(
    router: Router, topic: str, topic_id: bytes, positions: Mapping[int, int]
) -> dict[int, OffsetOutOfRangeError]:
    """Return the errors of positions beyond the end of their log, by partition.

    A group would wait at such a position for records that may never exist, or skip records before it. The coordinator
    does not know the ends of logs of other nodes, but a client usually does, since it has read the records. The owner
    is asked only about positions beyond the ends that this client knows, so commits of consumed records need no
    request. Positions whose owner does not answer within `END_CHECK_TIMEOUT_S` are not checked.
    """
    doubted = [number for number, offset in positions.items() if offset > router.known_ends.newest(topic_id, number)]
    if not doubted:
        return {}
    search = OffsetSearch(router, topic, "latest", doubted)
    with contextlib.suppress(TidelogError, TimeoutError):  # Without an answer, positions are committed unchecked.
        async with asyncio.timeout(END_CHECK_TIMEOUT_S):
            await search.attempt()
    return {
        number: beyond_end_error(topic, number, positions[number], end)
        for number, end in search.found.items()
        if positions[number] > end.high_watermark
    }


def beyond_end_error(topic: str, partition: int, offset: int, end: Offset) -> OffsetOutOfRangeError:
    """Return the error of a position beyond the end of the log."""
    error = OffsetOutOfRangeError(
        f"{topic}/{partition}: offset {offset} is beyond the end of the log, {end.high_watermark}; use an offset up to "
        "that end"
    )
    error.log_start_offset, error.high_watermark = end.log_start_offset, end.high_watermark
    return error
