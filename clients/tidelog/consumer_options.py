"""What a consumer was asked for, and the offsets at which it begins.

A partition whose beginning cannot be had yet holds up no other one: after `PATIENCE_S` the consumer begins without it,
and it is added when it is found. The end of a log that has lost its quorum nobody can confirm; who wants to begin there
begins at the end that a replica knows, which is not behind it: something older may come, nothing newer is missed. A
group's positions are another matter: only a quorum knows them, and to guess is to read twice or to skip. A group waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from tidelog import reading
from tidelog.admin import checked_group, microseconds
from tidelog.backoff import Backoff
from tidelog.errors import EpochChangingError, InvalidRequestError, NodeUnreachableError, TidelogError, told
from tidelog.filters import RecordFilter
from tidelog.model import Committed
from tidelog.reading import OffsetSearch
from tidelog.routing import Router

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""The log's ends, a time (with a zone), an offset for every partition, or partition -> offset."""

Partitions = Iterable[int] | Literal["all"] | None
"""Which to read. "all" takes in those that are added later, too, and so does None, unless `start` names some."""

OnOutOfRange = Literal["error", "earliest", "latest"]

PREFETCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
PREFETCH_RECORDS_DEFAULT: Final = 1_000_000

PATIENCE_S: Final = 3.0
"""So long a consumer waits for the beginnings of all partitions before it reads those that are known."""

TELL_EVERY_S: Final = 30.0

_log: Final = logging.getLogger("tidelog.consumer")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What `Client.consumer` was asked for. See there."""

    group: str | None
    start: Start
    partitions: tuple[int, ...] | None
    on_out_of_range: OnOutOfRange
    prefetch_bytes: int
    prefetch_records: int
    wanted: RecordFilter | None = None

    @classmethod
    def of(
        cls,
        *,
        group: str | None,
        start: Start,
        partitions: Partitions,
        on_out_of_range: OnOutOfRange,
        prefetch_bytes: int | None,
        prefetch_records: int | None,
        wanted: RecordFilter | None = None,
    ) -> ConsumerOptions:
        """Check the arguments of `Client.consumer`.

        Raises:
            InvalidRequestError: one of them has no such value.
        """
        if group is not None:
            checked_group(group)
        if isinstance(start, datetime):
            microseconds(start)
        elif isinstance(start, Mapping):
            if partitions is None:
                partitions = start.keys()
            if any(offset < 0 for offset in start.values()):
                raise InvalidRequestError("offsets are not negative")
        elif start not in ("earliest", "latest") and (not isinstance(start, int) or start < 0):
            raise InvalidRequestError(
                f"start is 'earliest', 'latest', a datetime, an offset or partition -> offset, not {start!r}"
            )
        if on_out_of_range not in get_args(OnOutOfRange):
            raise InvalidRequestError(f"on_out_of_range is one of {get_args(OnOutOfRange)}, not {on_out_of_range!r}")
        prefetch_bytes = PREFETCH_BYTES_DEFAULT if prefetch_bytes is None else prefetch_bytes
        prefetch_records = PREFETCH_RECORDS_DEFAULT if prefetch_records is None else prefetch_records
        if prefetch_bytes <= 0 or prefetch_records <= 0:
            raise InvalidRequestError("prefetch_bytes and prefetch_records are above zero")
        if isinstance(partitions, str) and partitions != "all":
            raise InvalidRequestError(f"partitions is some numbers, 'all' or None, not {partitions!r}")
        chosen = None if partitions is None or partitions == "all" else tuple(dict.fromkeys(partitions))
        return cls(group, start, chosen, on_out_of_range, prefetch_bytes, prefetch_records, wanted)


_Positions = tuple[dict[int, int], OffsetSearch | None]
"""Partition -> offset, and who looks for those that are missing, if any are."""


class Beginning(NamedTuple):
    """Where a consumer begins: a topic, by its id, and partition -> offset; and who looks for what is not known yet."""

    topic_id: bytes
    positions: dict[int, int]
    search: OffsetSearch | None = None


async def resolve_start(router: Router, topic: str, options: ConsumerOptions) -> Beginning:
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
        positions, search = await _positions(router, topic, options, sorted(route.partitions))
        standing = router.metadata.topic(topic)
        if standing is None or standing.topic_id != route.topic_id:  # some positions may be of the one before it
            raise EpochChangingError(f"the topic {topic!r} was made again while a consumer of it began")
        return Beginning(route.topic_id, positions, search)

    return await router.about_topic(topic, attempt, repeatable=True)


async def resolve_added(router: Router, topic: str, options: ConsumerOptions, partitions: list[int]) -> dict[int, int]:
    """Return where to begin in partitions that were added since: where the group committed, or at their beginning.

    Raises:
        TidelogError: it cannot be found out.
    """
    since = replace(options, start="earliest", partitions=tuple(partitions))
    positions, search = await _positions(router, topic, since, partitions)
    if search is not None:
        raise NodeUnreachableError("no node that could tell can be reached")
    return positions


async def _positions(router: Router, topic: str, options: ConsumerOptions, there_are: list[int]) -> _Positions:
    wanted = there_are if options.partitions is None else list(options.partitions)
    positions: dict[int, int] = {}
    if isinstance(options.start, Mapping):
        positions = {partition: options.start[partition] for partition in wanted if partition in options.start}
    if options.group is not None and len(positions) < len(wanted):
        held = await _committed(router, options.group, topic)
        positions = {each.partition: each.next_offset for each in held if each.partition in wanted} | positions
    rest = [partition for partition in wanted if partition not in positions]
    if not rest:
        return positions, None
    if isinstance(options.start, int):
        return positions | dict.fromkeys(rest, options.start), None
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
        return positions, OffsetSearch(router, topic, at, rest) if rest else None
    return positions | {partition: offset.offset for partition, offset in search.found.items()}, None


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
            return await reading.committed(router, group, topic)
        except NodeUnreachableError:
            raise
        except TidelogError as error:
            if not error.retriable:
                raise
