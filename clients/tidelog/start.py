"""What a consumer was asked for, and the offsets at which it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from tidelog import reading
from tidelog.admin import checked_group, microseconds
from tidelog.errors import EpochChangingError, InvalidRequestError
from tidelog.routing import Router

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""The log's ends, a time (with a zone), an offset for every partition, or partition -> offset."""

Partitions = Iterable[int] | Literal["all"] | None
"""Which to read. "all" takes in those that are added later, too, and so does None, unless `start` names some."""

OnOutOfRange = Literal["error", "earliest", "latest"]

PREFETCH_BYTES_DEFAULT: Final = 16 * 1024 * 1024
PREFETCH_RECORDS_DEFAULT: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """What `Client.consumer` was asked for. See there."""

    group: str | None
    start: Start
    partitions: tuple[int, ...] | None
    on_out_of_range: OnOutOfRange
    prefetch_bytes: int
    prefetch_records: int

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
        return cls(group, start, chosen, on_out_of_range, prefetch_bytes, prefetch_records)


class Beginning(NamedTuple):
    """Where a consumer begins: a topic, by its id, and partition -> offset."""

    topic_id: bytes
    positions: dict[int, int]


async def resolve_start(router: Router, topic: str, options: ConsumerOptions) -> Beginning:
    """Return where to begin.

    Raises:
        UnknownTopicError, UnknownPartitionError: there is no such thing.
    """

    async def attempt() -> Beginning:
        if options.partitions is None:
            # Later ones begin at their beginning, so all that there are have to be known now.
            route = await router.topic_now(topic)
        else:
            route = await router.topic_with(topic, options.partitions)
        positions = await _positions(router, topic, options, sorted(route.partitions))
        standing = router.metadata.topic(topic)
        if standing is None or standing.topic_id != route.topic_id:  # some positions may be of the one before it
            raise EpochChangingError(f"the topic {topic!r} was made again while a consumer of it began")
        return Beginning(route.topic_id, positions)

    return await router.about_topic(topic, attempt, repeatable=True)


async def resolve_added(router: Router, topic: str, options: ConsumerOptions, partitions: list[int]) -> dict[int, int]:
    """Return where to begin in partitions that were added since: where the group committed, or at their beginning.

    Raises:
        TidelogError: it cannot be found out.
    """
    since = replace(options, start="earliest", partitions=tuple(partitions))
    return await _positions(router, topic, since, partitions)


async def _positions(router: Router, topic: str, options: ConsumerOptions, there_are: list[int]) -> dict[int, int]:
    wanted = there_are if options.partitions is None else list(options.partitions)
    positions: dict[int, int] = {}
    if isinstance(options.start, Mapping):
        positions = {partition: options.start[partition] for partition in wanted if partition in options.start}
    if options.group is not None and len(positions) < len(wanted):
        held = await reading.committed(router, options.group, topic)
        positions = {each.partition: each.next_offset for each in held if each.partition in wanted} | positions
    rest = [partition for partition in wanted if partition not in positions]
    if rest:
        positions |= await _by_start(router, topic, options.start, rest)
    return positions


async def _by_start(router: Router, topic: str, start: Start, partitions: list[int]) -> dict[int, int]:
    if isinstance(start, int):
        return dict.fromkeys(partitions, start)
    at = "earliest" if isinstance(start, Mapping) else start
    offsets = await reading.list_offsets(router, topic, at, partitions)
    return {partition: offset.offset for partition, offset in offsets.items()}
