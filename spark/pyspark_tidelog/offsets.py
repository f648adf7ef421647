"""Which offsets a batch read covers, and where a stream begins: decided once, from a snapshot, without a connection.

`resolve` turns the options' positions and the bounds of each partition into ranges; `split` cuts ranges into
more tasks. Both are pure, so that every rule about missing records is tested without a broker. What a time
means in offsets must be asked of the broker: `Lookup` carries the answers in.

A range of records that are already deleted is data loss, and so is one that ends behind the high watermark;
`failOnDataLoss` says whether that fails the read or shortens the range. Starting at `earliest` asks for what is
there, and loses nothing by definition.
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
"""Of a load, or a micro-batch: Spark's driver keeps all of them in memory."""


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic, by name and number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a partition can be read of: log_start_offset <= offset < high_watermark."""

    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The first offset at or after a time; `found` is false (and `offset` the end) when all records are older."""

    offset: int
    found: bool


def select(selection: Selection, topics: Mapping[str, int]) -> list[TopicPartition]:
    """Return the chosen partitions, sorted; `topics` maps each existing topic to its number of partitions.

    Raises:
        OptionError: a topic or partition that was named does not exist, or a pattern matches none.
    """
    if isinstance(selection, Assign):
        for topic, partitions in selection.partitions.items():
            _require_topic(topic, topics)
            if partitions[-1] >= topics[topic]:
                raise OptionError(
                    f"option 'assign': topic {topic!r} has partitions 0 to {topics[topic] - 1}, "
                    f"there is no {partitions[-1]}."
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
            raise OptionError(f"option 'subscribePattern': {selection.pattern!r} matches none of the topics.")
    return sorted(TopicPartition(topic, p) for topic in names for p in range(topics[topic]))


def times_of(position: Position, partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
    """Return the time (µs since 1970) to be looked up for each partition; none if `position` is not by time.

    Raises:
        OptionError: times by partition (option `name`) do not name exactly the chosen partitions.
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
    """Return the non-empty ranges to read, one a partition and sorted, and a warning for each that was shortened.

    Args:
        options: what was asked for.
        bounds: of each chosen partition, at the moment of planning.
        starting: the answers for the partitions that start at a time.
        ending: the answers for the partitions that end at a time.

    Raises:
        OptionError: offsets do not name exactly the chosen partitions, a range ends before it starts, or a
            starting time is after the last record (unless the strategy is `latest`).
        DataLossError: a range goes beyond the bounds and `failOnDataLoss` is on.
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
            raise OptionError(f"{at}: the range ends ({end}) before it starts ({start}).")
        wanted = OffsetRange(at.topic, at.partition, start, max(start, end))
        held, loss = _clip(wanted, bounds[at])
        losses += loss
        if len(held):
            ranges.append(held)
    if losses and options.fail_on_data_loss:
        raise DataLossError(
            " ".join(losses) + " Set 'failOnDataLoss' to 'false' to read what there is, or choose other offsets."
        )
    return ranges, losses


def resolve_starts(
    options: ReadOptions, bounds: Mapping[TopicPartition, Bounds], starting: Mapping[TopicPartition, Lookup]
) -> tuple[dict[TopicPartition, int], list[str]]:
    """Return where a stream begins in each partition, and a warning for each where that is not what was asked for.

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
    if losses and options.fail_on_data_loss:
        raise DataLossError(
            " ".join(losses) + " Set 'failOnDataLoss' to 'false' to begin with what there is, or choose other offsets."
        )
    return begins, losses


def select_present(selection: Selection, topics: Mapping[str, int]) -> list[TopicPartition]:
    """As `select`, of what exists: what was named and is not there is left out."""
    if isinstance(selection, Assign):
        named = {topic: {p for p in of if p < topics.get(topic, 0)} for topic, of in selection.partitions.items()}
        return sorted(TopicPartition(topic, p) for topic, of in named.items() for p in of)
    if isinstance(selection, Subscribe):
        names = [topic for topic in selection.topics if topic in topics]
    else:
        pattern = re.compile(selection.pattern)
        names = [topic for topic in topics if pattern.fullmatch(topic)]
    return sorted(TopicPartition(topic, p) for topic in names for p in range(topics[topic]))


def split(
    ranges: Sequence[OffsetRange], min_partitions: int | None, max_records: int | None = None
) -> list[OffsetRange]:
    """Cut `ranges` into at least `min_partitions` pieces of near equal size, none with more than `max_records`.

    Raises:
        OptionError: these are more pieces than Spark can plan.
    """
    pieces = _at_least(ranges, min_partitions)
    if max_records is None:
        return pieces
    counts = [-(-len(piece) // max_records) for piece in pieces]
    if sum(counts) > TASKS_MAX:
        raise OptionError(
            f"option 'maxRecordsPerPartition': {max_records} would make {sum(counts)} tasks, {TASKS_MAX} are allowed: "
            "let a task read more, or load less at once."
        )
    return [cut for piece, count in zip(pieces, counts, strict=True) for cut in _pieces(piece, count)]


def _at_least(ranges: Sequence[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """Cut `ranges` into at least `min_partitions` pieces of near equal size, or into single records at most.

    Every range keeps at least one piece; larger ones get more, by largest remainder, so that the number asked
    for is met exactly whenever it is above the number of ranges. The pieces cover the ranges exactly, in order.
    """
    total = sum(map(len, ranges))
    wanted = min(min_partitions or 0, total)
    if wanted <= len(ranges):
        return list(ranges)
    shares = [len(r) * wanted / total for r in ranges]
    counts = [max(1, len(r) * wanted // total) for r in ranges]
    # Rounding down leaves pieces to give away, the one piece that each range keeps may have taken too many: both
    # are settled with the ranges that are farthest from their exact share.
    while (missing := wanted - sum(counts)) > 0:
        order = sorted(range(len(ranges)), key=lambda i: counts[i] - shares[i])
        for i in [i for i in order if counts[i] < len(ranges[i])][:missing]:
            counts[i] += 1
    while (over := sum(counts) - wanted) > 0:
        order = sorted(range(len(ranges)), key=lambda i: shares[i] - counts[i])
        for i in [i for i in order if counts[i] > 1][:over]:
            counts[i] -= 1
    return [piece for r, count in zip(ranges, counts, strict=True) for piece in _pieces(r, count)]


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    assert 1 <= count <= len(whole), "a piece has at least one record"
    cuts = [whole.start + len(whole) * i // count for i in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(cuts)]


def _wanted(position: Position, partitions: Sequence[TopicPartition], name: str) -> dict[TopicPartition, int]:
    """Return the offsets by partition that `position` names; none for `earliest`, `latest` and times."""
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
                f"{at}: no record is as late as the starting time. Choose an earlier one, or set "
                "'startingOffsetsByTimestampStrategy' to 'latest' to read nothing of such partitions."
            )
        return starting[at].offset
    start = starts.get(at, LATEST_OFFSET if options.starting is Edge.LATEST else EARLIEST_OFFSET)
    if start == LATEST_OFFSET:
        return bounds.high_watermark
    return bounds.log_start_offset if start == EARLIEST_OFFSET else start


def _clip(wanted: OffsetRange, bounds: Bounds) -> tuple[OffsetRange, list[str]]:
    """Return the part of `wanted` that is there, and what to say about the rest."""
    low, high = bounds.log_start_offset, bounds.high_watermark
    start = min(max(wanted.start, low), high)
    end = max(min(wanted.end, high), start)
    loss = []
    name = f"{wanted.topic}-{wanted.partition}"
    if wanted.start < low and len(wanted):
        loss.append(f"{name}: offsets {wanted.start} to {min(wanted.end, low) - 1} are deleted (it starts at {low}).")
    if max(wanted.start, wanted.end) > high:
        loss.append(f"{name}: offset {max(wanted.start, wanted.end)} is behind its end ({high}).")
    return replace(wanted, start=start, end=end), loss


def _for_exactly(
    given: Mapping[str, Mapping[int, int]], partitions: Sequence[TopicPartition], name: str
) -> dict[TopicPartition, int]:
    """Flatten numbers by topic and partition, which must be those of the chosen partitions: no guess is made."""
    flat = {TopicPartition(topic, p): number for topic, of in given.items() for p, number in of.items()}
    missing = sorted(set(partitions) - set(flat))
    extra = sorted(set(flat) - set(partitions))
    if missing or extra:
        said = [f"lacks {', '.join(map(str, missing[:8]))}"] if missing else []
        said += [f"names {', '.join(map(str, extra[:8]))}, not chosen or unknown"] if extra else []
        raise OptionError(
            f"option {name!r} {' and '.join(said)}: it names every chosen partition and no other "
            "(-2 stands for the earliest offset, -1 for the latest)."
        )
    return flat


def _require_topic(topic: str, topics: Mapping[str, int]) -> None:
    if topic not in topics:
        raise OptionError(f"there is no topic {topic!r}. Create it first, or check the name.")
