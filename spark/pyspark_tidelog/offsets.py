"""Offset ranges of a batch read, and starting offsets of a stream, computed from each partition's bounds.

The bounds (first offset and high watermark) are those at planning time. This module makes no requests, so that the
rules for missing records can be tested without a broker: `plan.py` requests the bounds, and the offsets for timestamps
(`Lookup`). `resolve` converts the options to ranges, and `split` divides ranges into more tasks.

A range with deleted records is data loss, and so is a range that ends after the high watermark; `failOnDataLoss`
determines whether the read fails or the range is shortened. A start at `earliest` never loses data.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark_tidelog.errors import DataLossError, OptionError
from pyspark_tidelog.options import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Edge,
    Position,
    ReadOptions,
    Selection,
    Subscribe,
)
from tidelog.requests.offset_ranges import OffsetRange

TASKS_MAX: Final = 100_000
"""Maximum number of tasks of a batch read or a micro-batch, because Spark's driver keeps them in memory."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Readable offsets of a partition: log_start_offset <= offset < high_watermark."""

    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The result of looking up a timestamp in a partition.

    Attributes:
        offset: the first offset at or after the timestamp; the end offset if all records are older.
        found: whether there is a record at or after the timestamp.
    """

    offset: int
    found: bool


def select(selection: Selection, topics: Mapping[str, int]) -> list[TopicPartition]:
    """Return the chosen partitions, sorted.

    Args:
        selection: the options that choose partitions.
        topics: number of partitions of each existing topic.

    Raises:
        OptionError: a named topic or partition does not exist, or a pattern matches no topic.
    """
    if isinstance(selection, Assign):
        for topic, partitions in selection.partitions.items():
            _require_topic(topic, topics)
            if partitions[-1] >= topics[topic]:
                raise OptionError(
                    f"option 'assign': topic {topic!r} has partitions 0 to {topics[topic] - 1}, "
                    f"but not {partitions[-1]}: choose existing partitions."
                )
        return sorted(TopicPartition(topic, p) for topic, ps in selection.partitions.items() for p in ps)
    if isinstance(selection, Subscribe):
        for topic in selection.topics:
            _require_topic(topic, topics)
        names: Iterable[str] = selection.topics
    else:
        pattern = re.compile(selection.pattern)
        names = [topic for topic in topics if pattern.fullmatch(topic)]
        if not names:
            raise OptionError(
                f"option 'subscribePattern': {selection.pattern!r} matches none of the {len(topics)} topics that this "
                "principal may see. Correct the pattern, create a topic, or grant access to one."
            )
    return sorted(TopicPartition(topic, p) for topic in names for p in range(topics[topic]))


def times_of(position: Position, partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
    """Return the time (µs since 1970) to look up for each partition; empty if `position` is not by time.

    Raises:
        OptionError: times by partition (option `name`) do not cover exactly the chosen partitions.
    """
    if isinstance(position, AtTimestamp):
        return dict.fromkeys(partitions, position.timestamp_us)
    if isinstance(position, AtTimestamps):
        return _for_exactly(position.timestamps_us, partitions, name)
    return {}


def resolve(
    options: ReadOptions,
    bounds: Mapping[TopicPartition, Bounds],
    *,
    starting: Mapping[TopicPartition, Lookup],
    ending: Mapping[TopicPartition, Lookup],
) -> tuple[list[OffsetRange], list[str]]:
    """Return the non-empty ranges to read, one per partition and sorted, and a warning for each part that is missing.

    Args:
        bounds: the bounds of each chosen partition at planning time.
        starting: the replies for the partitions that start at a timestamp.
        ending: the replies for the partitions that end at a timestamp.

    Raises:
        OptionError: offsets do not cover exactly the chosen partitions, a range ends before it starts, or a starting
            time is after the last record (unless the strategy is `latest`).
        DataLossError: a range exceeds the bounds, and `failOnDataLoss` is on.
    """
    partitions = sorted(bounds)
    starts = _wanted(options.starting, partitions, "startingOffsets")
    ends = _wanted(options.ending, partitions, "endingOffsets")
    ranges: list[OffsetRange] = []
    losses: list[str] = []
    for at in partitions:
        start = _start(options, at, starts, bounds[at], starting)
        end = ends.get(at, bounds[at].high_watermark)
        if at in ending:
            end = ending[at].offset
        elif end == LATEST_OFFSET:
            end = bounds[at].high_watermark
        if start > end and at in starts and at in ends:
            raise OptionError(
                f"{at}: the range ends at offset {end}, before it starts ({start}): correct 'startingOffsets' or "
                "'endingOffsets'."
            )
        requested = OffsetRange(at.topic, at.partition, start, max(start, end))
        held, loss = _clip(requested, bounds[at])
        losses += loss
        if len(held):
            ranges.append(held)
    _refuse(losses, options, "read")
    return ranges, losses


def resolve_starts(
    options: ReadOptions, bounds: Mapping[TopicPartition, Bounds], starting: Mapping[TopicPartition, Lookup]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return the starting offset of a stream in each partition, and a warning for each that differs from the options.

    Raises:
        OptionError, DataLossError: as `resolve`.
    """
    starts = _wanted(options.starting, sorted(bounds), "startingOffsets")
    begins: dict[TopicPartition, int] = {}
    losses: list[str] = []
    for at in sorted(bounds):
        start = _start(options, at, starts, bounds[at], starting)
        held, loss = _clip(
            OffsetRange(at.topic, at.partition, start, max(start, bounds[at].high_watermark)), bounds[at]
        )
        begins[at] = held.start
        losses += loss
    _refuse(losses, options, "start with")
    return begins, losses


def _refuse(losses: Sequence[str], options: ReadOptions, verb: str) -> None:
    """Raise DataLossError for missing records, unless `failOnDataLoss` is off.

    Args:
        verb: the use of the remaining records if `failOnDataLoss` is off, for the message.
    """
    if losses and options.fail_on_data_loss:
        raise DataLossError(
            " ".join(losses) + f" Set 'failOnDataLoss' to 'false' to {verb} the remaining records, or choose other "
            "offsets."
        )


def select_present(selection: Selection, topics: Mapping[str, int]) -> list[TopicPartition]:
    """Return the chosen partitions as `select`, without topics and partitions that do not exist."""
    if isinstance(selection, Assign):
        present = {topic: {p for p in of if p < topics.get(topic, 0)} for topic, of in selection.partitions.items()}
        return sorted(TopicPartition(topic, p) for topic, of in present.items() for p in of)
    if isinstance(selection, Subscribe):
        names = [topic for topic in selection.topics if topic in topics]
    else:
        pattern = re.compile(selection.pattern)
        names = [topic for topic in topics if pattern.fullmatch(topic)]
    return sorted(TopicPartition(topic, p) for topic in names for p in range(topics[topic]))


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None = None
) -> list[OffsetRange]:
    """Split `ranges` into at least `min_partitions` ranges of similar size, each with at most `max_records`.

    None sets no bound.

    Raises:
        OptionError: `max_records` would need more than `TASKS_MAX` ranges.
    """
    parts = _at_least(ranges, min_partitions)
    if max_records is None:
        return parts
    counts = [-(-len(part) // max_records) for part in parts]
    if sum(counts) > TASKS_MAX:
        raise OptionError(
            f"option 'maxRecordsPerPartition': {max_records} would need {sum(counts)} tasks, but Spark gets at most "
            f"{TASKS_MAX}: increase 'maxRecordsPerPartition', or read fewer records at once."
        )
    return [cut for part, count in zip(parts, counts, strict=True) for cut in _parts(part, count)]


def _at_least(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """Split `ranges` into at least `min_partitions` parts of similar size, but at most one per record.

    Every range has at least one part; larger ranges have more, by largest remainder, so that the number of parts is
    exact if it exceeds the number of ranges. The parts cover the ranges exactly, in order.
    """
    total = sum(map(len, ranges))
    target = min(min_partitions or 0, total)
    if target <= len(ranges):
        return list(ranges)
    shares = [len(r) * target / total for r in ranges]
    counts = [max(1, len(r) * target // total) for r in ranges]
    # Rounding down may leave parts to distribute; the minimum of one part per range may have used too many. Both are
    # corrected at the ranges that are farthest from their exact share.
    while (missing := target - sum(counts)) > 0:
        order = sorted(range(len(ranges)), key=lambda i: counts[i] - shares[i])
        for i in [i for i in order if counts[i] < len(ranges[i])][:missing]:
            counts[i] += 1
    while (over := sum(counts) - target) > 0:
        order = sorted(range(len(ranges)), key=lambda i: shares[i] - counts[i])
        for i in [i for i in order if counts[i] > 1][:over]:
            counts[i] -= 1
    return [part for r, count in zip(ranges, counts, strict=True) for part in _parts(r, count)]


def _parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    assert 1 <= count <= len(whole), "a part has at least one record"
    cuts = [whole.start + len(whole) * i // count for i in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(cuts)]


def _wanted(position: Position, partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
    """Return the offsets by partition in `position`; empty for `earliest`, `latest` and timestamps."""
    if isinstance(position, AtOffsets):
        return _for_exactly(position.offsets, partitions, name)
    return {}


def _start(
    options: ReadOptions,
    at: TopicPartition,
    starts: Mapping[TopicPartition, int],
    bounds: Bounds,
    starting: Mapping[TopicPartition, Lookup],
) -> int:
    if at in starting:
        if not starting[at].found and not options.start_late_timestamps_at_latest:
            raise OptionError(
                f"{at}: no record is at or after the starting time. Choose an earlier time, or set "
                "'startingOffsetsByTimestampStrategy' to 'latest' to read none of the current records of such "
                "partitions."
            )
        return starting[at].offset
    start = starts.get(at, LATEST_OFFSET if options.starting is Edge.LATEST else EARLIEST_OFFSET)
    if start == LATEST_OFFSET:
        return bounds.high_watermark
    return bounds.log_start_offset if start == EARLIEST_OFFSET else start


def _clip(requested: OffsetRange, bounds: Bounds) -> tuple[OffsetRange, list[str]]:
    """Return the part of `requested` that exists, and a message for each missing part."""
    low, high = bounds.log_start_offset, bounds.high_watermark
    start = min(max(requested.start, low), high)
    end = max(min(requested.end, high), start)
    loss = []
    name = f"{requested.topic}-{requested.partition}"
    if requested.start < low and len(requested):
        loss.append(
            f"{name}: offsets {requested.start} to {min(requested.end, low) - 1} are deleted (the partition starts at "
            f"offset {low})."
        )
    if max(requested.start, requested.end) > high:
        loss.append(f"{name}: offset {max(requested.start, requested.end)} is after the partition's end ({high}).")
    return replace(requested, start=start, end=end), loss


def _for_exactly(
    numbers: Mapping[str, Mapping[int, int]], partitions: Sequence[TopicPartition], name: str
) -> dict[TopicPartition, int]:
    """Return the numbers of option `name` by partition; the option must name exactly the chosen partitions."""
    flat = {TopicPartition(topic, p): number for topic, of in numbers.items() for p, number in of.items()}
    missing = sorted(set(partitions) - set(flat))
    extra = sorted(set(flat) - set(partitions))
    if missing or extra:
        faults = [f"lacks {', '.join(map(str, missing[:8]))}"] if missing else []
        if extra:
            faults.append(f"has {', '.join(map(str, extra[:8]))}, which are not chosen or do not exist")
        hint = "" if "Timestamp" in name else " (-2 means the earliest offset, -1 the latest)"
        raise OptionError(f"option {name!r} {' and '.join(faults)}: name exactly the chosen partitions{hint}.")
    return flat


def _require_topic(topic: str, topics: Mapping[str, int]) -> None:
    if topic not in topics:
        raise OptionError(
            f"topic {topic!r} does not exist, or this principal may not see it. Correct the name (list the topics "
            "with: tidelog topic list), create the topic, or grant access to it."
        )
