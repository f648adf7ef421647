"""A consumer's options, and the resolution of its start offsets.

A partition whose start offset cannot be resolved yet does not delay the others: after `START_WAIT_S` the consumer
starts without it and adds it when the offset is known. If a log has lost its quorum, its end cannot be confirmed; a
consumer that starts at "latest" then starts at the end that a replica knows, which may return older records but skips
none. Committed positions are known only by a quorum, and a guess would repeat or skip records, so a group waits for
them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, Literal, NamedTuple, TypedDict, cast, get_args

from tidelog.base.backoff import Backoff
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, InvalidRequestError, NodeUnreachableError, TidelogError, describe_error
from tidelog.model import Committed, TopicPartition
from tidelog.requests import committed_positions
from tidelog.requests.conversions import checked_group, checked_topic, microseconds
from tidelog.requests.list_offsets import OffsetSearch
from tidelog.requests.needed_permission import requiring
from tidelog.requests.record_filters import RecordFilter, record_filter
from tidelog.rows.row_filter import Where
from tidelog.subscriptions.deserializers import Decoding, Deserializer, OnUndecodable
from tidelog.subscriptions.prefetch import Credit
from tidelog.subscriptions.row_view import RowView, Values
from tidelog.subscriptions.topic_pattern import TopicPattern
from tidelog_proto import broker_pb2 as pb

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int] | Mapping[TopicPartition, int]
"""An end of the log, a time (with a zone), an offset for every partition, or partition -> offset."""

Partitions = Iterable[int] | Mapping[str, Iterable[int]] | Literal["all"] | None
"""Partitions to read: numbers of one topic, topic -> numbers, "all" or None.

"all" includes partitions that are added later, and so does None unless `start` names partitions.
"""

OnOutOfRange = Literal["error", "earliest", "latest"]

PREFETCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
PREFETCH_RECORDS_DEFAULT: Final = 1_000_000

START_WAIT_S: Final = 3.0
"""How long a consumer waits for the start offsets of all partitions before it reads those that are resolved."""

LOG_INTERVAL_S: Final = 30.0

_log: Final = logging.getLogger("tidelog.consumer")


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """A consumer's options for one topic.

    Attributes:
        group: consumer group whose committed positions take precedence over `start`; None without a group.
        start: where to start; a mapping is by partition number.
        partitions: the partitions to read; None for all, including later ones.
    """

    group: str | None
    start: Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
    partitions: tuple[int, ...] | None


class ConsumerArguments(TypedDict, total=False):
    """The arguments of `Client.consumer` except topics and group; documented there.

    The defaults are in `ConsumerOptions.of`.
    """

    pattern: str | None
    start: Start
    partitions: Partitions
    on_out_of_range: OnOutOfRange
    prefetch_bytes: int | None
    prefetch_records: int | None
    admit: Callable[[int], bool] | None
    dropped: Callable[[int], None] | None
    key: bytes | None
    tag: str | None
    value_deserializer: Deserializer | None
    key_deserializer: Deserializer | None
    on_undecodable: OnUndecodable
    dead_letter: str | None
    columns: Sequence[str] | None
    values: Values
    rows: type | None
    where: Where | None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The checked arguments of `Client.consumer`."""

    topics: tuple[str, ...]
    pattern: TopicPattern | None
    group: str | None
    start: Start
    partitions: Literal["all"] | Mapping[str, tuple[int, ...]] | None
    on_out_of_range: OnOutOfRange
    prefetch: Credit
    admit: Callable[[int], bool] | None
    dropped: Callable[[int], None] | None
    record_filter: RecordFilter | None
    decoding: Decoding
    dead_letter: str | None
    view: RowView

    @classmethod
    def of(
        cls,
        topics: Sequence[str],
        *,
        group: str | None = None,
        pattern: str | None = None,
        start: Start = "earliest",
        partitions: Partitions = None,
        on_out_of_range: OnOutOfRange = "error",
        prefetch_bytes: int | None = None,
        prefetch_records: int | None = None,
        admit: Callable[[int], bool] | None = None,
        dropped: Callable[[int], None] | None = None,
        key: bytes | None = None,
        tag: str | None = None,
        value_deserializer: Deserializer | None = None,
        key_deserializer: Deserializer | None = None,
        on_undecodable: OnUndecodable = "error",
        dead_letter: str | None = None,
        columns: Sequence[str] | None = None,
        values: Values = "rows",
        rows: type | None = None,
        where: Where | None = None,
    ) -> ConsumerOptions:
        """Check the arguments of `Client.consumer`.

        Raises:
            InvalidRequestError, InvalidTopicError: an argument has an invalid value.
            TypeError: `key` is not bytes, or `tag` is not a str.
        """
        for topic in topics:
            if not isinstance(topic, str):
                raise InvalidRequestError(
                    f"topic names must be text, got {topic!r}; pass several as consumer('a', 'b')"
                )
        if topics and pattern is not None:
            raise InvalidRequestError("topic names and pattern= exclude each other; pass one of them")
        if group is not None:
            checked_group(group)
        if on_out_of_range not in get_args(OnOutOfRange):
            raise InvalidRequestError(
                f"on_out_of_range must be one of {get_args(OnOutOfRange)}, got {on_out_of_range!r}"
            )
        prefetch_bytes = PREFETCH_BYTES_DEFAULT if prefetch_bytes is None else prefetch_bytes
        prefetch_records = PREFETCH_RECORDS_DEFAULT if prefetch_records is None else prefetch_records
        if prefetch_bytes <= 0 or prefetch_records <= 0:
            raise InvalidRequestError(
                f"prefetch_bytes and prefetch_records must be > 0, got {prefetch_bytes} and {prefetch_records}"
            )
        if dead_letter is not None:
            checked_topic(dead_letter)
        names = tuple(dict.fromkeys(topics))
        if dead_letter is not None and dead_letter in names:
            raise dead_letter_loop_error(dead_letter)
        return cls(
            names,
            None if pattern is None else TopicPattern(pattern, exclude=dead_letter),
            group,
            _checked_start(names, start),
            _checked_partitions(names, partitions),
            on_out_of_range,
            Credit(prefetch_records, prefetch_bytes),
            admit,
            dropped,
            record_filter(key, tag),
            Decoding.of(
                value=value_deserializer,
                key=key_deserializer,
                on_undecodable=on_undecodable,
                dead_letter=dead_letter,
                has_model=rows is not None,
            ),
            dead_letter,
            RowView.of(columns=columns, values=values, rows=rows, where=where),
        )

    @property
    def is_shared(self) -> bool:
        """Whether the group assigns the partitions, instead of the application."""
        chooses = self.partitions is not None or isinstance(self.start, Mapping)
        return self.group is not None and not chooses and bool(self.topics or self.pattern)

    def of_topic(self, topic: str) -> TopicOptions:
        """Return the options for one topic."""
        start: Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
        if isinstance(self.start, Mapping):
            starts = self._named(topic)
            start = starts or "earliest"
        else:
            starts, start = {}, self.start
        if self.partitions == "all":
            return TopicOptions(self.group, start, None)
        if isinstance(self.partitions, Mapping):
            return TopicOptions(self.group, start, self.partitions.get(topic, ()))
        return TopicOptions(self.group, start, tuple(starts) or None)

    def _named(self, topic: str) -> dict[int, int]:
        """Return the start offsets that `start` names in a topic."""
        assert isinstance(self.start, Mapping)
        starts: dict[int, int] = {}
        for where, offset in self.start.items():
            if not isinstance(where, TopicPartition):
                starts[where] = offset
            elif where.topic == topic:
                starts[where.partition] = offset
        return starts


def dead_letter_loop_error(dead_letter: str) -> InvalidRequestError:
    """Return the error for a consumer that would read its own dead-letter topic."""
    return InvalidRequestError(
        f"{dead_letter!r} is this consumer's dead-letter topic; reading it as well would republish undecodable records "
        "endlessly: read it with another consumer"
    )


def _checked_start(topics: tuple[str, ...], start: Start) -> Start:
    if isinstance(start, datetime):
        microseconds(start)
    elif isinstance(start, Mapping):
        for partition, offset in start.items():
            if offset < 0:
                raise InvalidRequestError(f"the offsets in start must be >= 0, got {offset} for {partition!r}")
        by_number = [where for where in start if not isinstance(where, TopicPartition)]
        if by_number and len(topics) != 1:
            raise InvalidRequestError(
                f"the key {by_number[0]!r} of `start` needs a topic, because the consumer does not have exactly one "
                f"topic name: use TopicPartition(topic, {by_number[0]!r})"
            )
        strange = [where for where in start if isinstance(where, TopicPartition) and topics and where[0] not in topics]
        if strange:
            raise InvalidRequestError(
                f"start names topic {strange[0].topic!r}, which this consumer does not read; it reads {sorted(topics)}"
            )
    elif start not in ("earliest", "latest") and (not isinstance(start, int) or start < 0):
        raise InvalidRequestError(
            f"start must be 'earliest', 'latest', a datetime, an offset >= 0, or a mapping partition -> offset, "
            f"got {start!r}"
        )
    return start


def _checked_partitions(
    topics: tuple[str, ...], partitions: Partitions
) -> Literal["all"] | Mapping[str, tuple[int, ...]] | None:
    if partitions is None:
        return None
    if isinstance(partitions, str):
        if partitions != "all":
            raise InvalidRequestError(
                f"partitions must be numbers, topic -> numbers, 'all' or None, got {partitions!r}"
            )
        return "all"
    if isinstance(partitions, Mapping):
        by_topic = cast("Mapping[str, Iterable[int]]", partitions)
        if set(by_topic) != set(topics):
            raise InvalidRequestError(
                f"partitions must have the consumer's topics {sorted(topics)}, got {sorted(by_topic)}; with a pattern, "
                "leave partitions out"
            )
        return {topic: tuple(dict.fromkeys(numbers)) for topic, numbers in by_topic.items()}
    if not isinstance(partitions, Iterable):
        raise InvalidRequestError(f"partitions must be numbers, topic -> numbers, 'all' or None, got {partitions!r}")
    if len(topics) != 1:
        raise InvalidRequestError(
            f"partition numbers need exactly one topic name, got {len(topics)}: with several topics pass "
            "partitions={topic: [numbers]}, with a pattern leave partitions out"
        )
    return {topics[0]: tuple(dict.fromkeys(partitions))}


class _Positions(NamedTuple):
    """Partition -> offset, the search for those that are missing, and the partitions with a committed position."""

    positions: dict[int, int]
    search: OffsetSearch | None = None
    committed: frozenset[int] = frozenset()


class StartPositions(NamedTuple):
    """The start offsets of a consumer in one topic.

    Attributes:
        topic_id: id of the topic to which the offsets belong.
        positions: partition -> start offset, as far as known.
        search: the search for the missing offsets; None if all are known.
        committed: the partitions that start at the group's committed position.
    """

    topic_id: bytes
    positions: dict[int, int]
    search: OffsetSearch | None = None
    committed: frozenset[int] = frozenset()


async def resolve_start(router: Router, topic: str, options: TopicOptions) -> StartPositions:
    """Return the start offsets that can be resolved within `START_WAIT_S`; `find_missing_starts` resolves the others.

    The committed positions of a group are awaited without a time limit.

    Raises:
        UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
        TidelogError: no node can be reached, or the error is not retriable.
    """

    async def attempt() -> StartPositions:
        if options.partitions is None:
            # Partitions added later are read from their first record, so the existing ones must be known exactly.
            route = await router.topic_now(topic)
        else:
            await router.confirmed_topic(topic)  # The consumer reads the topic that has the name when it begins.
            route = await router.topic_with(topic, options.partitions)
        known = await _positions(router, topic, options, sorted(route.partitions))
        standing = router.metadata.topic(topic)
        # The topic was recreated meanwhile: some positions may belong to the deleted one.
        if standing is None or standing.topic_id != route.topic_id:
            raise EpochChangingError(f"topic {topic!r} was recreated while a consumer of it started; try again")
        return StartPositions(route.topic_id, *known)

    async with requiring(router, pb.OP_CONSUME, topic):
        return await router.retry_for_topic(topic, attempt, repeatable=True)


async def confirm_topics(router: Router, topics: Iterable[str]) -> None:
    """Check that the topics that a group member names exist, and that its principal may read them.

    Raises:
        UnknownTopicError: a topic does not exist.
        ForbiddenError: the principal may not read a topic.
        TidelogError: as `resolve_start`.
    """
    for topic in topics:
        async with requiring(router, pb.OP_CONSUME, topic):
            await router.retry_for_topic(topic, partial(router.topic_now, topic), repeatable=True)


async def resolve_added(router: Router, topic: str, options: TopicOptions, partitions: list[int]) -> dict[int, int]:
    """Return the start offsets of partitions that were added later: the committed position, or the log start.

    Raises:
        TidelogError: the positions cannot be resolved now.
    """
    since = replace(options, start="earliest", partitions=tuple(partitions))
    known = await _positions(router, topic, since, partitions)
    if known.search is not None:
        raise NodeUnreachableError(
            f"no replica of partitions {known.search.missing} of topic {topic!r} can be reached; start a node that "
            "stores them"
        )
    return known.positions


async def _positions(router: Router, topic: str, options: TopicOptions, there_are: list[int]) -> _Positions:
    numbers = there_are if options.partitions is None else list(options.partitions)
    positions: dict[int, int] = {}
    committed = frozenset[int]()
    if isinstance(options.start, Mapping):
        positions = {partition: options.start[partition] for partition in numbers if partition in options.start}
    if options.group is not None and len(positions) < len(numbers):
        held = await _committed(router, options.group, topic)
        stored = {each.partition: each.next_offset for each in held if each.partition in numbers}
        committed = frozenset(stored.keys() - positions.keys())
        positions = stored | positions
    rest = [partition for partition in numbers if partition not in positions]
    if not rest:
        return _Positions(positions, None, committed)
    if isinstance(options.start, int):
        return _Positions(positions | dict.fromkeys(rest, options.start), None, committed)
    at = "earliest" if isinstance(options.start, Mapping) else options.start
    search = OffsetSearch(router, topic, at, rest)
    try:
        await _search(router, topic, search, START_WAIT_S)
    except TidelogError as error:
        if not error.retriable:
            raise
        unconfirmed = await _known_ends(router, topic, search.missing) if at == "latest" else {}
        if unconfirmed:
            _log.warning(
                "%s: the ends of partitions %s cannot be confirmed; reading from the end that a replica knows, which "
                "may return older records: %s",
                topic,
                sorted(unconfirmed),
                describe_error(error),
            )
        positions |= unconfirmed
        rest = [partition for partition in search.missing if partition not in unconfirmed]
        positions |= {partition: offset.offset for partition, offset in search.found.items()}
        return _Positions(positions, OffsetSearch(router, topic, at, rest) if rest else None, committed)
    offsets = {partition: offset.offset for partition, offset in search.found.items()}
    return _Positions(positions | offsets, None, committed)


async def positions_to_begin_at(
    router: Router,
    options: ConsumerOptions,
    positions: Mapping[TopicPartition, int | None],
    assigned: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return the offset at which to begin in each partition.

    Args:
        positions: partition -> offset; None: the consumer's start position. Partitions with None that are in
            `assigned` are omitted from the result.
        assigned: the partitions that are read already.

    Raises:
        TidelogError: a start position cannot be found.
    """
    known = {where: offset for where, offset in positions.items() if offset is not None}
    unknown: dict[str, list[int]] = {}
    for where, offset in positions.items():
        if offset is None and where not in assigned:
            unknown.setdefault(where.topic, []).append(where.partition)
    for topic, numbers in unknown.items():
        start = await resolve_start(router, topic, replace(options.of_topic(topic), partitions=tuple(numbers)))
        offsets = dict(start.positions)
        if start.search is not None:
            await find_missing_starts(router, topic, start.search, offsets.update)
        known |= {TopicPartition(topic, number): offset for number, offset in offsets.items()}
    return known


async def find_missing_starts(
    router: Router, topic: str, search: OffsetSearch, on_found: Callable[[dict[int, int]], None]
) -> None:
    """Retry until all start offsets are resolved; pass new ones to `on_found`, and log what is missing.

    Raises:
        TidelogError: the error is not retriable.
    """
    loop = asyncio.get_running_loop()
    log_at = 0.0
    while search.missing:
        before = set(search.found)
        try:
            await _search(router, topic, search, START_WAIT_S)
        except TidelogError as error:
            if not error.retriable:
                raise
            if loop.time() >= log_at:
                log_at = loop.time() + LOG_INTERVAL_S
                _log.warning(
                    "%s: start offsets of partitions %s are not known yet; reading the others, still retrying: %s",
                    topic,
                    search.missing,
                    describe_error(error),
                )
        new = {partition: each.offset for partition, each in search.found.items() if partition not in before}
        if new:
            on_found(new)


async def _search(router: Router, topic: str, search: OffsetSearch, timeout_s: float) -> None:
    """Search until all offsets are found or the time is up.

    Raises:
        TidelogError: why offsets are missing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    backoff = Backoff()
    while True:
        try:
            async with asyncio.timeout(max(deadline - loop.time(), 0.1)):
                await search.attempt()
        except TidelogError as error:
            wait_s = backoff.next_wait_s(error.retry_after_ms)
            if not error.retriable or loop.time() + wait_s >= deadline:
                raise
            router.learn_from(topic, error)
            await router.news(topic, wait_s)
        except TimeoutError:
            failure = NodeUnreachableError(f"no node returned the offsets of topic {topic!r} within {timeout_s:g} s")
            search.failures |= dict.fromkeys(search.missing, failure)
            raise failure from None
        else:
            return


async def _known_ends(router: Router, topic: str, partitions: list[int]) -> dict[int, int]:
    """Return the log ends that replicas know; partitions without a reachable replica are missing.

    The search asks for the log start, because any replica answers that, and the answer includes the replica's log end.
    """
    search = OffsetSearch(router, topic, "earliest", partitions)
    try:
        await _search(router, topic, search, START_WAIT_S)
    except TidelogError as error:
        if not error.retriable:
            raise
    return {partition: offset.high_watermark for partition, offset in search.found.items()}


async def _committed(router: Router, group: str, topic: str) -> list[Committed]:
    """Return a group's committed positions, waiting for a quorum as long as necessary; the router logs the wait.

    Raises:
        TidelogError: no node can be reached, or the error is not retriable.
    """
    while True:
        try:
            return await committed_positions.committed(router, group, topic)
        except NodeUnreachableError:
            raise
        except TidelogError as error:
            if not error.retriable:
                raise
