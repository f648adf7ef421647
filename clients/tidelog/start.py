"""What a consumer was asked for, and the offsets at which it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, get_args

from tidelog import reading
from tidelog.admin import checked_group, microseconds
from tidelog.errors import InvalidRequestError, UnknownPartitionError
from tidelog.routing import Router

Start = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""The log's ends, a time (with a zone), an offset for every partition, or partition -> offset."""

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
        partitions: Iterable[int] | None,
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
        chosen = None if partitions is None else tuple(dict.fromkeys(partitions))
        return cls(group, start, chosen, on_out_of_range, prefetch_bytes, prefetch_records)


async def resolve_start(router: Router, topic: str, options: ConsumerOptions) -> dict[int, int]:
    """Return partition -> offset to begin at.

    Raises:
        UnknownTopicError, UnknownPartitionError: there is no such thing.
    """
    route = await router.about_topic(topic, lambda: router.topic(topic), repeatable=True)
    wanted = sorted(route.partitions) if options.partitions is None else list(options.partitions)
    missing = [partition for partition in wanted if partition not in route.partitions]
    if missing:
        raise UnknownPartitionError(f"topic {topic!r} has partitions 0 to {route.partition_count - 1}, not {missing}")
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
