"""Positions of a stream: offsets by topic and partition, and the records of the next micro-batch.

A position is stored in Spark's checkpoint as `{"flights": {"0": 23, "1": 7, "id": "9f…", "schema": 3}}`: the format of
Spark's Kafka source, plus the topic's id, because a recreated topic of the same name has other records, and for a
typed topic the number of the schema under which the records up to this position were planned. Topics and partitions are
sorted, because Spark compares positions as text.

A new partition is added to a position with the offset at which reading starts, in a micro-batch that reads none of its
records; these come with the next one. So the ranges of a micro-batch depend only on its two positions, and a restarted
query reads the same records, whatever happened to the log.

Rejected: looking up the offsets of new partitions when a micro-batch is planned, as Spark's Kafka source does: after a
restart, the repeated batch might start elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark_tidelog.errors import DataLossError, TidelogSourceError
from pyspark_tidelog.offsets import Bounds, TopicPartition
from tidelog.requests.offset_ranges import OffsetRange

_ID: Final = "id"
_SCHEMA: Final = "schema"
_IS_ID: Final = re.compile(r"([0-9a-f]{2})+", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position up to which a stream has read its partitions, as Spark stores it in the checkpoint.

    Attributes:
        offsets: the next offset to read, by partition.
        topic_ids: id of each topic in hex; may be missing in positions that another program wrote.
        schema_numbers: of each typed topic, the number of the schema of the rows up to this position; may be missing.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    schema_numbers: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, int | str]]:
        """Return the position as Spark stores it."""
        result: dict[str, dict[str, int | str]] = {}
        for at in sorted(self.offsets):
            result.setdefault(at.topic, {})[str(at.partition)] = self.offsets[at]
        for topic, of in result.items():
            if topic in self.topic_ids:
                of[_ID] = self.topic_ids[topic]
            if topic in self.schema_numbers:
                of[_SCHEMA] = self.schema_numbers[topic]
        return result


def parse_position(stored: object) -> StreamPosition:
    """Parse a stored position.

    Raises:
        TidelogSourceError: the value is not a position of this source.
    """
    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    schema_numbers: dict[str, int] = {}
    for topic, of in _items(stored, stored):
        for name, number in _items(of, stored):
            if name == _ID and isinstance(number, str) and _IS_ID(number):
                topic_ids[topic] = number
            elif name == _SCHEMA and isinstance(number, int) and number > 0:
                schema_numbers[topic] = number
            elif name.isdecimal() and isinstance(number, int) and number >= 0:
                offsets[TopicPartition(topic, int(name))] = number
            else:
                raise _no_position(stored)
    return StreamPosition(offsets, topic_ids, schema_numbers)


def _items(of: object, value: object) -> Iterable[tuple[str, object]]:
    if not isinstance(of, Mapping):
        raise _no_position(value)
    return of.items()


def _no_position(stored: object) -> TidelogSourceError:
    return TidelogSourceError(
        f"the checkpoint does not contain a position of this source: {str(stored)[:200]!r}. Was it written by another "
        "source? Give the query its own checkpointLocation."
    )


@dataclass(frozen=True, slots=True)
class PartitionBounds:
    """Bounds of the chosen partitions at one time.

    Attributes:
        bounds: the bounds of each partition.
        topic_ids: the ids of the partitions' topics, in hex.
    """

    bounds: Mapping[TopicPartition, Bounds]
    topic_ids: Mapping[str, str]


class Losses:
    """Raises or logs the loss of a stream's records.

    Args:
        fail: whether a loss raises an error.
        warn: called with the description of a loss that does not.
    """

    def __init__(self, *, fail: bool, warn: Callable[[str], None]) -> None:
        self._fail = fail
        self._warn = warn

    def lost(self, what: str) -> None:
        """Report missing records.

        Raises:
            DataLossError: `fail` is set.
        """
        if self._fail:
            raise DataLossError(
                f"{what} Set 'failOnDataLoss' to 'false' to continue with the remaining records, or start again with "
                "another checkpointLocation."
            )
        self._warn(what)


def advance(start: StreamPosition, current: PartitionBounds, losses: Losses, *, most: int | None) -> StreamPosition:
    """Return the end of the micro-batch that begins at `start`; it equals `start` if there is nothing new.

    Args:
        start: end of the last micro-batch.
        current: current bounds of the chosen partitions.
        losses: reports records that no longer exist.
        most: maximum number of offsets over all partitions, though each partition with records gets at least one; None
            for no limit.

    Raises:
        DataLossError: as `losses`.
    """
    ends: dict[TopicPartition, int] = {}
    topic_ids = dict(start.topic_ids)
    made_again = set()
    for topic, topic_id in current.topic_ids.items():
        before = topic_ids.setdefault(topic, topic_id)
        if before != topic_id:
            losses.lost(f"topic {topic!r} was deleted and recreated; unread records of the old one are lost.")
            made_again.add(topic)
            topic_ids[topic] = topic_id
    backlog: dict[TopicPartition, int] = {}
    for at, offset in start.offsets.items():
        bounds = current.bounds.get(at)
        if at.topic in made_again:
            continue
        if bounds is None:
            losses.lost(f"{at} no longer exists or is no longer chosen; the stream's position was offset {offset}.")
            ends[at] = offset
        elif bounds.high_watermark < offset:
            losses.lost(f"{at} ends at offset {bounds.high_watermark}, before the stream's position {offset}.")
            ends[at] = bounds.high_watermark
        else:
            backlog[at] = bounds.high_watermark - offset
    for at, count in shares(backlog, most).items():
        ends[at] = start.offsets[at] + count
    for at, bounds in current.bounds.items():
        if at not in ends:
            ends[at] = bounds.log_start_offset
    return StreamPosition(ends, {topic: topic_ids[topic] for topic in sorted({at.topic for at in ends} & {*topic_ids})})


def with_new_partitions(
    start: StreamPosition, end: StreamPosition, look: Callable[[], PartitionBounds], losses: Losses
) -> StreamPosition:
    """Return `start` with partitions added that are new in `end`, which was determined without `start`.

    Needed before Spark 4.2. `end` then includes records of new partitions that no other micro-batch covers, and losses
    up to `end` have not been reported. A batch that is repeated after a restart starts such a partition at its current
    first offset.

    Args:
        start: start of a micro-batch.
        end: end of the micro-batch.
        look: returns the current bounds; called only if a partition is new.
        losses: reports records that no longer exist.

    Raises:
        DataLossError: as `losses`.
    """
    advance(
        start,
        PartitionBounds({at: Bounds(0, offset) for at, offset in end.offsets.items()}, end.topic_ids),
        losses,
        most=None,
    )
    made_again = {topic for topic, of in start.topic_ids.items() if end.topic_ids.get(topic, of) != of}
    offsets = {at: offset for at, offset in start.offsets.items() if at.topic not in made_again}
    entered = [at for at in end.offsets if at not in offsets]
    if entered:
        bounds = look().bounds
        offsets |= {at: bounds[at].log_start_offset if at in bounds else 0 for at in entered}
    return StreamPosition(offsets, {**start.topic_ids, **end.topic_ids})


def shares(backlog: Mapping[TopicPartition, int], most: int | None) -> dict[TopicPartition, int]:
    """Divide `most` records among partitions in proportion to their backlog, at least one for each with records."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return dict(backlog)
    return {at: min(count, max(1, count * most // total)) for at, count in backlog.items()}


def backlog_of(start: StreamPosition, end: StreamPosition) -> int:
    """Return the number of offsets between two positions."""
    return sum(map(len, ranges_between(start, end)))


def ranges_between(start: StreamPosition, end: StreamPosition) -> list[OffsetRange]:
    """Return the ranges of a micro-batch, sorted; a partition that is new in `end`, or of a new topic id, has none."""
    ranges = []
    for at in sorted(end.offsets):
        begin = start.offsets.get(at)
        if begin is None or begin >= end.offsets[at]:
            continue
        if start.topic_ids.get(at.topic, end.topic_ids.get(at.topic)) == end.topic_ids.get(at.topic):
            ranges.append(OffsetRange(at.topic, at.partition, begin, end.offsets[at]))
    return ranges
