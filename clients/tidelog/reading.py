"""FETCH, LIST_OFFSETS, COMMIT and COMMITTED: what a reader asks of partition owners, one question a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.admin import At, NewestOf, check_position, checked_group, committed_of, list_offsets_entry, offset_of
from tidelog.connection import Connection, results_of
from tidelog.errors import (
    EpochChangingError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TidelogError,
    UnknownTopicError,
    error_of,
    error_of_read,
    told,
)
from tidelog.fetch_options import FETCH_BYTES_DEFAULT, projection_message
from tidelog.filters import record_filter
from tidelog.group_commits import Commits
from tidelog.metadata import gone_error
from tidelog.model import Committed, Fetched, Offset, TopicPartition
from tidelog.paging import in_requests
from tidelog.partly import tell_done
from tidelog.routing import Router
from tidelog.stand_ins import Reached
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX

OFFSETS_PER_REQUEST: Final = 256
"""Of how many partitions a node is asked at a time where they lie: it may have to open each of them first."""
ENDS_S: Final = 2.0
"""For so long owners are asked for ends before a commit; a position about which nobody answers is committed."""
_MS: Final = 1000


async def fetch(
    router: Router,
    topic: str,
    partition: int,
    offset: int,
    *,
    max_bytes: int = FETCH_BYTES_DEFAULT,
    min_bytes: int = 0,
    wait_ms: int = 0,
    key: bytes | None = None,
    tag: str | None = None,
    columns: Sequence[str] | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    end_offset: int | None = None,
    nearest: bool = False,
    topic_id: bytes = b"",
    control: bool = False,
) -> Fetched:
    """Read whole batches from `offset` on, or what is wanted of them; `control`: also those of the broker's own.

    See `Client.fetch`.
    """
    if offset < 0 or not 0 < max_bytes <= FETCH_BYTES_MAX or not 0 <= wait_ms <= FETCH_WAIT_MS_MAX:
        raise InvalidRequestError(
            f"offset {offset}, max_bytes {max_bytes} (1 to {FETCH_BYTES_MAX}), wait_ms {wait_ms} "
            f"(0 to {FETCH_WAIT_MS_MAX}): one of them is out of range"
        )
    entry = pb.FetchEntry(partition=partition, offset=offset, topic_id=topic_id)
    if (wanted := record_filter(key, tag)) is not None:
        entry.filter.CopyFrom(wanted.to_message())
    if (projection := projection_message(columns, since_us, until_us, end_offset)) is not None:
        entry.projection.CopyFrom(projection)
    request = pb.Fetch(entries=[entry], min_bytes=min_bytes, max_bytes=max_bytes, wait_ms=wait_ms)

    async def attempt() -> Fetched:
        near = await router.near_reader(topic, partition) if nearest else None
        if near is not None:
            try:
                fetched = await _fetched_from(router, near, topic, request, end_offset or 0, control=control)
                if offset <= fetched.high_watermark:
                    return fetched  # else only the owner can tell whether there is such an offset
            except TidelogError as error:  # the owner knows whether it is one
                if error.retriable:
                    router.nearby.shun(near.connection.address, told(error))
        reached = await router.reading_connection(topic, partition)
        return await _fetched_from(router, reached, topic, request, end_offset or 0, control=control)

    return await router.about_topic(topic, attempt, repeatable=True, partition=partition)


async def _fetched_from(
    router: Router, reached: Reached, topic: str, request: pb.Fetch, end_offset: int, *, control: bool
) -> Fetched:
    """Ask a node once; `end_offset`: up to there there are records, as whoever asks knows."""
    route = await router.topic(topic)
    envelope = pb.Envelope(fetch=request)
    (entry,) = envelope.fetch.entries
    if entry.topic_id and entry.topic_id != route.topic_id:
        raise UnknownTopicError(f"the topic {topic!r} that was to be read was deleted; the one of that name is another")
    entry.topic_id = route.topic_id
    partition, offset = entry.partition, entry.offset
    where = [TopicPartition(topic, partition)]
    frame = await router.call_reader(where, reached, envelope, wait_s=request.wait_ms / _MS)
    (result,) = results_of(frame.envelope.fetch_reply.results, 1, reached.connection)
    if result.HasField("error"):
        raise error_of(result.error, reached.connection.name)
    known_end = router.ends.known(route.topic_id, partition, epoch=result.epoch)
    router.ends.note(route.topic_id, partition, epoch=result.epoch, end_offset=result.high_watermark)
    # An owner that ends before has lost something; another replica may only not have heard of it yet.
    known_end = max(known_end, result.high_watermark, 0 if reached.is_owner else end_offset)
    got_on = result.next_offset > offset  # past records that are not wanted, too
    if not result.length and not got_on and offset < known_end:
        raise _lags(reached.connection, topic, partition, offset)
    batches = parse_batches(frame.attachment, TopicPartition(topic, partition), offset, control=control)
    router.epochs.read(route.topic_id, partition, batches)
    return Fetched(
        batches=batches,
        next_offset=result.next_offset,
        log_start_offset=result.log_start_offset,
        high_watermark=result.high_watermark,
        epoch=result.epoch,
    )


def _lags(connection: Connection, topic: str, partition: int, offset: int) -> TidelogError:
    """Return the error for a record that is committed, and that the node which was asked does not have yet."""
    host, port = connection.address
    return EpochChangingError(f"{host}:{port} cannot read {topic!r}/{partition} up to offset {offset} yet; try again")


def parse_batches(
    attachment: memoryview, where: TopicPartition, offset: int, *, control: bool = False
) -> list[RecordBatch]:
    """Cut an attachment into batches, without what lies before `offset`; the broker's own with `control` only.

    Raises:
        CorruptBatchError, UnsupportedBatchError: the bytes are damaged, or of a newer version; says where.
    """
    wanted: list[RecordBatch] = []
    at = offset
    try:
        for view in iter_batches(attachment):
            batch = RecordBatch.parse(view).slice_from(offset)
            at = batch.end_offset
            if len(batch) and (control or not batch.control):
                wanted.append(batch)
    except ProtocolError as error:
        raise error_of_read(error, where.topic, where.partition, at) from error
    return wanted


class OffsetSearch:
    """Looks for one point in the log of several partitions; what was found is kept between tries.

    So one partition without an owner does not make all the others be asked again. The log's end only owners tell, who
    confirm it; another replica that is asked in place of one says what is missing. All else any replica tells.

    Attributes:
        found: by partition.
        failures: why the others were not found by the last try.
    """

    def __init__(self, router: Router, topic: str, at: At | NewestOf, wanted: Iterable[int]) -> None:
        self.found: dict[int, Offset] = {}
        self.failures: dict[int, TidelogError] = {}
        self._router = router
        self._topic = topic
        self._at: At | NewestOf = at
        self._wanted = list(dict.fromkeys(wanted))

    @property
    def missing(self) -> list[int]:
        """The partitions that were not found yet."""
        return [partition for partition in self._wanted if partition not in self.found]

    async def attempt(self) -> dict[int, Offset]:
        """Look for those that are missing, once; return all.

        Raises:
            TidelogError: the first failure; one that no repeating mends comes first.
        """
        self.failures = {}
        missing = self.missing
        reaching = [self._router.reading_connection(self._topic, partition) for partition in missing]
        reached = await asyncio.gather(*reaching, return_exceptions=True)
        groups: dict[Connection, tuple[Reached, list[int]]] = {}
        for partition, one in zip(missing, reached, strict=True):
            if isinstance(one, BaseException):
                self._note([partition], one)
            else:
                groups.setdefault(one.connection, (one, []))[1].append(partition)
        await asyncio.gather(*(self._ask_in_turn(one, group) for one, group in groups.values()))
        if any(isinstance(failure, UnknownTopicError) for failure in self.failures.values()):
            self.found.clear()  # the name may stand for another topic now
        for failure in sorted(self.failures.values(), key=lambda each: each.retriable):
            raise failure
        return {partition: self.found[partition] for partition in self._wanted}

    async def _ask_in_turn(self, reached: Reached, group: list[int]) -> None:
        """Ask a node for some partitions after the others, until it fails: what is left fails with it."""
        for start in range(0, len(group), OFFSETS_PER_REQUEST):
            try:
                await self._ask(reached, group[start : start + OFFSETS_PER_REQUEST])
            except TidelogError as failure:
                self._note(group[start:], failure)
                return

    async def _ask(self, reached: Reached, group: list[int]) -> None:
        route = await self._router.topic(self._topic)
        entries = [list_offsets_entry(route.topic_id, partition, self._at) for partition in group]
        envelope = pb.Envelope(list_offsets=pb.ListOffsets(entries=entries))
        asked = [TopicPartition(self._topic, partition) for partition in group]
        frame = await self._router.call_reader(asked, reached, envelope)
        results = results_of(frame.envelope.list_offsets_reply.results, len(group), reached.connection)
        by_time = self._at not in {"earliest", "latest"}
        for partition, result in zip(group, results, strict=True):
            try:
                found = self.found[partition] = offset_of(result, by_time=by_time)
                if self._at == "latest":
                    end_offset = found.high_watermark
                    self._router.ends.note(route.topic_id, partition, epoch=None, end_offset=end_offset)
            except TidelogError as error:
                self._router.learn_from(self._topic, error, partition)
                self.failures[partition] = error

    def _note(self, partitions: Iterable[int], failure: BaseException) -> None:
        if not isinstance(failure, TidelogError):
            raise failure
        self.failures.update(dict.fromkeys(partitions, failure))


async def list_offsets(
    router: Router, topic: str, at: At | NewestOf, partitions: Iterable[int] | None
) -> dict[int, Offset]:
    """Resolve a point in the log. See `Client.list_offsets`."""
    wanted = list(partitions or ())
    if partitions is None:  # all, those included that were added since this client last looked
        wanted = sorted((await router.about_topic(topic, lambda: router.topic_now(topic), repeatable=True)).partitions)
    return await router.about_topic(topic, OffsetSearch(router, topic, at, wanted).attempt, repeatable=True)


async def beyond_ends(
    router: Router, topic: str, topic_id: bytes, positions: Mapping[int, int]
) -> dict[int, OffsetOutOfRangeError]:
    """Return why positions lie beyond the ends of their partitions, by partition, where that can be told.

    A group would wait there for records that may never be, or skip those that come to lie in front. The node that
    stores positions does not know where the logs of others end. A client does for the most part: it has read up to
    there. So the owner is asked only about what lies beyond all that is known here: whoever commits what he was handed
    asks nobody.
    """
    doubted = [number for number, offset in positions.items() if offset > router.ends.newest(topic_id, number)]
    if not doubted:
        return {}
    search = OffsetSearch(router, topic, "latest", doubted)
    with contextlib.suppress(TidelogError, TimeoutError):  # whoever stores the position says what is wrong, if anything
        async with asyncio.timeout(ENDS_S):
            await search.attempt()
    return {
        number: beyond(topic, number, positions[number], end)
        for number, end in search.found.items()
        if positions[number] > end.high_watermark
    }


def beyond(topic: str, partition: int, offset: int, end: Offset) -> OffsetOutOfRangeError:
    """Return the error for a position behind the end that an owner has told."""
    error = OffsetOutOfRangeError(f"{topic}/{partition}: {offset} lies beyond the end of the log, {end.high_watermark}")
    error.log_start_offset, error.high_watermark = end.log_start_offset, end.high_watermark
    return error


async def commit(
    router: Router,
    group: str,
    topic: str,
    positions: Mapping[int, int],
    *,
    reset: bool,
    note: str,
    topic_id: bytes | None = None,
) -> dict[int, Committed]:
    """Commit a group's positions in the topic `topic_id`, None for whichever has the name. See `Client.commit`."""
    checked_group(group)
    for partition, offset in positions.items():
        check_position(TopicPartition(topic, partition), offset)
    if not positions:
        return {}
    done: dict[bytes, dict[int, Committed]] = {}
    """By topic id: what one try has committed is not asked for by the next one, which asks for the rest."""

    async def ask(connection: Connection) -> dict[int, Committed]:
        route = await router.topic(topic)
        if topic_id is not None and route.topic_id != topic_id:
            raise gone_error(topic)
        held = done.setdefault(route.topic_id, {})
        refused = await beyond_ends(router, topic, route.topic_id, positions)
        wanted = [each for each in positions.items() if each[0] not in held and each[0] not in refused]
        for part in in_requests(wanted):
            entries = [
                pb.CommitEntry(
                    topic_id=route.topic_id,
                    partition=partition,
                    next_offset=next_offset,
                    note=note,
                    # Who moves a position by hand goes by the log as it is now, not by what was read here at some time.
                    record_epoch=None if reset else router.epochs.at(route.topic_id, partition, next_offset),
                )
                for partition, next_offset in part
            ]
            envelope = pb.Envelope(commit=pb.Commit(group=group, reset=reset, entries=entries))
            frame = await router.call(connection, envelope)
            results = results_of(frame.envelope.commit_reply.results, len(entries), connection)
            stored = committed_of([one for one in results if not one.HasField("error")], {route.topic_id: topic})
            held |= {each.partition: each for each in stored}
            failures = [error_of(one.error, connection.name) for one in results if one.HasField("error")]
            for failure in sorted(failures, key=lambda each: each.retriable):
                raise failure
        for refusal in refused.values():
            raise refusal
        return {partition: held[partition] for partition in positions if partition in held}

    # A commit that is repeated says the same again, and without reset positions only move forward. With it, a copy that
    # is late could undo a newer reset, so that one goes to one node at a time.
    try:
        return await router.about_topic(topic, lambda: router.at_any(ask, repeatable=not reset), repeatable=True)
    except TidelogError as error:
        route = router.metadata.topic(topic)
        tell_done(error, done.get(topic_id or (route.topic_id if route is not None else b""), {}), "committed")
        raise


async def commit_topics(
    router: Router,
    group: str,
    positions: Mapping[TopicPartition, int],
    *,
    note: str,
    topic_ids: Mapping[str, bytes],
) -> Commits:
    """Commit a group's positions, one topic after the other until one fails; `topic_ids`: see `commit`."""
    by_topic: dict[str, dict[int, int]] = {}
    for where, offset in positions.items():
        by_topic.setdefault(where.topic, {})[where.partition] = offset
    commits = Commits({}, {})
    for topic, of_topic in by_topic.items():
        try:
            stored = await commit(router, group, topic, of_topic, reset=False, note=note, topic_id=topic_ids.get(topic))
        except TidelogError as error:
            commits.failed.update({TopicPartition(topic, partition): error for partition in of_topic})
            break
        commits.held.update({TopicPartition(topic, partition): each for partition, each in stored.items()})
    return commits


async def committed(router: Router, group: str, topic: str | None) -> list[Committed]:
    """Return a group's positions. See `Client.committed`."""
    checked_group(group)

    async def ask(connection: Connection) -> list[Committed]:
        asked = pb.Committed(group=group)
        if topic is not None:
            # Of the topic, not of the partitions that are known here: there may be more.
            asked.topic_id = (await router.topic(topic)).topic_id
        results: list[pb.CommittedResult] = []
        while True:
            reply = (await router.call(connection, pb.Envelope(committed=asked))).envelope.committed_reply
            results += reply.results
            if not reply.HasField("last") or reply.last == asked.after:
                break
            asked.after.CopyFrom(reply.last)
        for each in results:
            if each.HasField("record_epoch"):
                router.epochs.told(each.topic_id, each.partition, offset=each.next_offset, epoch=each.record_epoch)
        if topic is not None:
            return committed_of(results, {asked.topic_id: topic})
        return committed_of(results, await _names(router, connection, results))

    if topic is None:
        return await router.retrying(lambda: router.at_any(ask), repeatable=True, about=f"group {group!r}")
    return await router.about_topic(topic, lambda: router.at_any(ask), repeatable=True)


async def _names(router: Router, connection: Connection, results: Iterable[pb.CommittedResult]) -> dict[bytes, str]:
    """Return the topics' names by id: as the node tells them, or as they are known here.

    A node of an older release tells none; then all that it has is looked at.
    """
    named = {result.topic_id: result.topic or router.metadata.name_of(result.topic_id) for result in results}
    if None in named.values():
        question = pb.Metadata()
        while True:
            reply = (await router.call(connection, pb.Envelope(metadata=question))).envelope.metadata_reply
            router.take_metadata(reply, connection.address)
            if not reply.HasField("next") or reply.next == question.cursor:
                break
            question.cursor.CopyFrom(reply.next)
        named = {topic_id: name or router.metadata.name_of(topic_id) for topic_id, name in named.items()}
    return {topic_id: name for topic_id, name in named.items() if name is not None}
