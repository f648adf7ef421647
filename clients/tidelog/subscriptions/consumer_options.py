"""What a consumer was asked for, and the offsets at which it begins.

A partition whose beginning cannot be had yet holds up no other one: after `PATIENCE_S` the consumer begins without it,
and it is added when it is found. The end of a log that has lost its quorum nobody can confirm; who wants to begin there
begins at the end that a replica knows, which is not behind it: something older may come, nothing newer is missed. A
group's positions are another matter: only a quorum knows them, and to guess is to read twice or to skip. A group waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, cast, get_args

from tidelog.base.backoff import Backoff
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, InvalidRequestError, NodeUnreachableError, TidelogError, told
from tidelog.model import Committed, TopicPartition
from tidelog.requests import committed_positions
from tidelog.requests.conversions import checked_group, checked_topic, microseconds
from tidelog.requests.list_offsets import OffsetSearch
from tidelog.requests.record_filters import RecordFilter
from tidelog.subscriptions.deserializers import Decoding
from tidelog.subscriptions.prefetch import Credit
from tidelog.subscriptions.topic_pattern import TopicPattern

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int] | Mapping[TopicPartition, int]
"""The log's ends, a time (with a zone), an offset for every partition, or partition -> offset."""

Partitions = Iterable[int] | Mapping[str, Iterable[int]] | Literal["all"] | None
"""Which to read: numbers of one topic, or topic -> numbers. "all" takes in those that are added later, too, and so does
None, unless `start` names some."""

OnOutOfRange = Literal["error", "earliest", "latest"]

PREFETCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
PREFETCH_RECORDS_DEFAULT: Final = 1_000_000

PATIENCE_S: Final = 3.0
"""So long a consumer waits for the beginnings of all partitions before it reads those that are known."""

TELL_EVERY_S: Final = 30.0

_log: Final = logging.getLogger("tidelog.consumer")


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What a consumer was asked for in one topic.

    Attributes:
        group: whose positions come before `start`.
        start: of this topic, so a mapping is by number.
        partitions: which to read; None for all, later ones too.
    """

    group: str | None
    start: Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
    partitions: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What `Client.consumer` was asked for. See there."""

    topics: tuple[str, ...]
    pattern: TopicPattern | None
    group: str | None
    start: Start
    partitions: Literal["all"] | Mapping[str, tuple[int, ...]] | None
    on_out_of_range: OnOutOfRange
    prefetch: Credit
    wanted: RecordFilter | None
    decoding: Decoding
    dead_letter: str | None

    @classmethod
    def of(
        cls,
        topics: Sequence[str],
        *,
        pattern: str | None = None,
        group: str | None = None,
        start: Start = "earliest",
        partitions: Partitions = None,
        on_out_of_range: OnOutOfRange = "error",
        prefetch_bytes: int | None = None,
        prefetch_records: int | None = None,
        wanted: RecordFilter | None = None,
        decoding: Decoding | None = None,
        dead_letter: str | None = None,
    ) -> ConsumerOptions:
        """Check the arguments of `Client.consumer`.

        Raises:
            InvalidRequestError: one of them has no such value.
        """
        for topic in topics:
            if not isinstance(topic, str):
                raise InvalidRequestError(
                    f"topics are given one by one, as in consumer('a', 'b'); {topic!r} is no name"
                )
        if topics and pattern is not None:
            raise InvalidRequestError("a consumer reads topics by name, or those that match a pattern, not both")
        if group is not None:
            checked_group(group)
        if on_out_of_range not in get_args(OnOutOfRange):
            raise InvalidRequestError(f"on_out_of_range is one of {get_args(OnOutOfRange)}, not {on_out_of_range!r}")
        prefetch_bytes = PREFETCH_BYTES_DEFAULT if prefetch_bytes is None else prefetch_bytes
        prefetch_records = PREFETCH_RECORDS_DEFAULT if prefetch_records is None else prefetch_records
        if prefetch_bytes <= 0 or prefetch_records <= 0:
            raise InvalidRequestError("prefetch_bytes and prefetch_records are above zero")
        if dead_letter is not None:
            checked_topic(dead_letter)
        names = tuple(dict.fromkeys(topics))
        if dead_letter is not None and dead_letter in names:
            raise feeds_itself(dead_letter)
        return cls(
            names,
            None if pattern is None else TopicPattern(pattern, besides=dead_letter),
            group,
            _checked_start(names, start),
            _checked_partitions(names, partitions),
            on_out_of_range,
            Credit(prefetch_records, prefetch_bytes),
            wanted,
            decoding or Decoding(),
            dead_letter,
        )

    @property
    def is_shared(self) -> bool:
        """Whether a group decides what is read, and not who asked."""
        chooses = self.partitions is not None or isinstance(self.start, Mapping)
        return self.group is not None and not chooses and bool(self.topics or self.pattern)

    def of_topic(self, topic: str) -> TopicOptions:
        """Return what was asked for in one topic."""
        start: Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
        if isinstance(self.start, Mapping):
            named = self._named(topic)
            start = named or "earliest"
        else:
            named, start = {}, self.start
        if self.partitions == "all":
            return TopicOptions(self.group, start, None)
        if isinstance(self.partitions, Mapping):
            return TopicOptions(self.group, start, self.partitions.get(topic, ()))
        return TopicOptions(self.group, start, tuple(named) or None)

    def _named(self, topic: str) -> dict[int, int]:
        """Return where partitions of a topic begin that `start` names."""
        assert isinstance(self.start, Mapping)
        named: dict[int, int] = {}
        for where, offset in self.start.items():
            if not isinstance(where, TopicPartition):
                named[where] = offset
            elif where.topic == topic:
                named[where.partition] = offset
        return named


def feeds_itself(dead_letter: str) -> InvalidRequestError:
    """Return the error of a consumer that is to read its own dead-letter topic."""
    return InvalidRequestError(
        f"{dead_letter!r} is this consumer's dead-letter topic: if it read that, too, each record there that does not "
        "decode would be put there again, without end; read it with another consumer"
    )


def _checked_start(topics: tuple[str, ...], start: Start) -> Start:
    if isinstance(start, datetime):
        microseconds(start)
    elif isinstance(start, Mapping):
        if any(offset < 0 for offset in start.values()):
            raise InvalidRequestError("offsets are not negative")
        by_number = [where for where in start if not isinstance(where, TopicPartition)]
        if by_number and len(topics) != 1:
            raise InvalidRequestError(f"of which topic is partition {by_number[0]!r}? give TopicPartition(...): offset")
        strange = [where for where in start if isinstance(where, TopicPartition) and topics and where[0] not in topics]
        if strange:
            raise InvalidRequestError(f"start names {strange[0].topic!r}, which this consumer does not read")
    elif start not in ("earliest", "latest") and (not isinstance(start, int) or start < 0):
        raise InvalidRequestError(
            f"start is 'earliest', 'latest', a datetime, an offset or partition -> offset, not {start!r}"
        )
    return start


def _checked_partitions(
    topics: tuple[str, ...], partitions: Partitions
) -> Literal["all"] | Mapping[str, tuple[int, ...]] | None:
    if partitions is None:
        return None
    if isinstance(partitions, str):
        if partitions != "all":
            raise InvalidRequestError(f"partitions is some numbers, 'all' or None, not {partitions!r}")
        return "all"
    if isinstance(partitions, Mapping):
        by_topic = cast("Mapping[str, Iterable[int]]", partitions)
        if set(by_topic) != set(topics):
            raise InvalidRequestError(f"partitions names topics {sorted(by_topic)}; {sorted(topics)} are read")
        return {topic: tuple(dict.fromkeys(numbers)) for topic, numbers in by_topic.items()}
    if not isinstance(partitions, Iterable):
        raise InvalidRequestError(f"partitions is some numbers, 'all' or None, not {partitions!r}")
    if len(topics) != 1:
        raise InvalidRequestError("of several topics partitions are chosen by topic -> numbers")
    return {topics[0]: tuple(dict.fromkeys(partitions))}


class _Positions(NamedTuple):
    """Partition -> offset; who looks for those that are missing, if any are; and where the group has committed."""

    positions: dict[int, int]
    search: OffsetSearch | None = None
    committed: frozenset[int] = frozenset()


class Beginning(NamedTuple):
    """Where a consumer begins: a topic, by its id, and partition -> offset; and who looks for what is not known yet.

    `committed` are the partitions that begin where their group has committed.
    """

    topic_id: bytes
    positions: dict[int, int]
    search: OffsetSearch | None = None
    committed: frozenset[int] = frozenset()


async def resolve_start(router: Router, topic: str, options: TopicOptions) -> Beginning:
    """Return where to begin, as far as that can be found within `PATIENCE_S`; the rest is for `find_rest`.

    Raises:
        UnknownTopicError, UnknownPartitionError: there is no such thing.
        TidelogError: no node can be reached, or trying again would not help.
    """

    async def attempt() -> Beginning:
        if options.partitions is None:
            # Later ones begin at their beginning, so all that there are have to be known now.
            route = await router.topic_now(topic)
        else:
            route = await router.topic_with(topic, options.partitions)
        found = await _positions(router, topic, options, sorted(route.partitions))
        standing = router.metadata.topic(topic)
        if standing is None or standing.topic_id != route.topic_id:  # some positions may be of the one before it
            raise EpochChangingError(f"the topic {topic!r} was made again while a consumer of it began")
        return Beginning(route.topic_id, *found)

    return await router.about_topic(topic, attempt, repeatable=True)


async def resolve_added(router: Router, topic: str, options: TopicOptions, partitions: list[int]) -> dict[int, int]:
    """Return where to begin in partitions that were added since: where the group committed, or at their beginning.

    Raises:
        TidelogError: it cannot be found out.
    """
    since = replace(options, start="earliest", partitions=tuple(partitions))
    found = await _positions(router, topic, since, partitions)
    if found.search is not None:
        raise NodeUnreachableError("no node that could tell can be reached")
    return found.positions


async def _positions(router: Router, topic: str, options: TopicOptions, there_are: list[int]) -> _Positions:
    wanted = there_are if options.partitions is None else list(options.partitions)
    positions: dict[int, int] = {}
    committed = frozenset[int]()
    if isinstance(options.start, Mapping):
        positions = {partition: options.start[partition] for partition in wanted if partition in options.start}
    if options.group is not None and len(positions) < len(wanted):
        held = await _committed(router, options.group, topic)
        told_of = {each.partition: each.next_offset for each in held if each.partition in wanted}
        committed = frozenset(told_of.keys() - positions.keys())
        positions = told_of | positions
    rest = [partition for partition in wanted if partition not in positions]
    if not rest:
        return _Positions(positions, None, committed)
    if isinstance(options.start, int):
        return _Positions(positions | dict.fromkeys(rest, options.start), None, committed)
    at = "earliest" if isinstance(options.start, Mapping) else options.start
    search = OffsetSearch(router, topic, at, rest)
    try:
        await _search(router, topic, search, PATIENCE_S)
    except TidelogError as error:
        if not error.retriable:
            raise
        unconfirmed = await _known_ends(router, topic, search.missing) if at == "latest" else {}
        if unconfirmed:
            _log.warning(
                "%s: nobody can confirm where partitions %s end: they are read from the end on that a replica knows, "
                "so that older records may come: %s",
                topic,
                sorted(unconfirmed),
                told(error),
            )
        positions |= unconfirmed
        rest = [partition for partition in search.missing if partition not in unconfirmed]
        positions |= {partition: offset.offset for partition, offset in search.found.items()}
        return _Positions(positions, OffsetSearch(router, topic, at, rest) if rest else None, committed)
    found = {partition: offset.offset for partition, offset in search.found.items()}
    return _Positions(positions | found, None, committed)


async def positions_to_begin_at(
    router: Router,
    options: ConsumerOptions,
    positions: Mapping[TopicPartition, int | None],
    assigned: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return partition -> offset; None becomes where the consumer begins, and is left out of what is assigned.

    Raises:
        TidelogError: a beginning cannot be found.
    """
    known = {where: offset for where, offset in positions.items() if offset is not None}
    unknown: dict[str, list[int]] = {}
    for where, offset in positions.items():
        if offset is None and where not in assigned:
            unknown.setdefault(where.topic, []).append(where.partition)
    for topic, numbers in unknown.items():
        beginning = await resolve_start(router, topic, replace(options.of_topic(topic), partitions=tuple(numbers)))
        found = dict(beginning.positions)
        if beginning.search is not None:
            await find_rest(router, topic, beginning.search, found.update)
        known |= {TopicPartition(topic, number): offset for number, offset in found.items()}
    return known


async def find_rest(router: Router, topic: str, search: OffsetSearch, found: Callable[[dict[int, int]], None]) -> None:
    """Look for beginnings until all are found; tell `found` of those that are new, and the log of what is missing.

    Raises:
        TidelogError: trying again would not help.
    """
    loop = asyncio.get_running_loop()
    tell_at = 0.0
    while search.missing:
        before = set(search.found)
        try:
            await _search(router, topic, search, PATIENCE_S)
        except TidelogError as error:
            if not error.retriable:
                raise
            if loop.time() >= tell_at:
                tell_at = loop.time() + TELL_EVERY_S
                _log.warning(
                    "%s: partitions %s cannot be read yet, the others are; still trying: %s",
                    topic,
                    search.missing,
                    told(error),
                )
        new = {partition: each.offset for partition, each in search.found.items() if partition not in before}
        if new:
            found(new)


async def _search(router: Router, topic: str, search: OffsetSearch, patience_s: float) -> None:
    """Look until all is found or the time is over.

    Raises:
        TidelogError: why something is missing.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
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
            failure = NodeUnreachableError(f"no answer within {patience_s:g} s")
            search.failures |= dict.fromkeys(search.missing, failure)
            raise failure from None
        else:
            return


async def _known_ends(router: Router, topic: str, partitions: list[int]) -> dict[int, int]:
    """Return the ends of partitions as far as replicas know them; those of which none can be asked are left out."""
    search = OffsetSearch(router, topic, "earliest", partitions)
    try:
        await _search(router, topic, search, PATIENCE_S)
    except TidelogError as error:
        if not error.retriable:
            raise
    return {partition: offset.high_watermark for partition, offset in search.found.items()}


async def _committed(router: Router, group: str, topic: str) -> list[Committed]:
    """Return a group's positions, however long it takes until a quorum confirms them; the router's log says so.

    Raises:
        TidelogError: no node can be reached, or trying again would not help.
    """
    while True:
        try:
            return await committed_positions.committed(router, group, topic)
        except NodeUnreachableError:
            raise
        except TidelogError as error:
            if not error.retriable:
                raise
