"""Planning of a read: options to offset ranges, with requests to the broker; `offsets.py` has the rules.

All requests are sent while Spark plans the query; tasks get fixed ranges. So every task and every retry reads the same
records while the topic grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from pyspark_tidelog.filters import Narrowed
from pyspark_tidelog.offsets import (
    Bounds,
    Lookup,
    TopicPartition,
    resolve,
    resolve_starts,
    select,
    select_present,
    split,
    times_of,
)
from pyspark_tidelog.options import AtTimestamp, Position, ReadOptions
from pyspark_tidelog.stream_offsets import Losses, PartitionBounds, StreamPosition
from tidelog.requests.offset_ranges import OffsetRange
from tidelog.sync import Client
from tidelog_proto.process.epoch_units import EPOCH

EVERYTHING: Final = Narrowed()


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges of a batch read, fixed when Spark plans the query.

    Attributes:
        ranges: one for each Spark task; empty if there is nothing to read.
        topic_ids: id of each chosen topic; a recreated topic of the same name has another id.
        warnings: missing records; empty unless `failOnDataLoss` is off.
    """

    ranges: list[OffsetRange]
    topic_ids: Mapping[str, bytes]
    warnings: list[str]


def make_plan(options: ReadOptions, client: Client, narrowed: Narrowed = EVERYTHING) -> Plan:
    """Plan a batch read of the records that match the options and the bounds of the query.

    Raises:
        OptionError: the options do not fit the topics.
        DataLossError: requested records are missing, and `failOnDataLoss` is on.
        TidelogError: a request of the client failed.
    """
    topics = {topic.name: topic for topic in client.topics()}
    partitions = select(options.selection, {name: topic.partition_count for name, topic in topics.items()})
    starting = _look_up(client, options.starting, partitions, "startingOffsetsByTimestamp")
    ending = _look_up(client, options.ending, partitions, "endingOffsetsByTimestamp")
    # Requested last, so that the offsets above are within the bounds even if the topics are written meanwhile.
    bounds = _bounds(client, partitions)
    ranges, warnings = resolve(options, bounds, starting=starting, ending=ending)
    ranges = _not_before(client, narrowed.since_us, narrowed.of(ranges))
    task_ranges = split(ranges, options.min_partitions, options.max_records)
    return Plan(task_ranges, {at.topic: topics[at.topic].topic_id for at in partitions}, warnings)


def _not_before(client: Client, since_us: int | None, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Skip the records of each range before its first one at or after a time; later records may be older again."""
    if since_us is None or not ranges:
        return ranges
    places = [TopicPartition(each.topic, each.partition) for each in ranges]
    firsts = _look_up(client, AtTimestamp(since_us), places, "timestamp")
    shortened = [
        replace(each, start=max(each.start, firsts[at].offset)) for each, at in zip(ranges, places, strict=True)
    ]
    return [each for each in shortened if each.start < each.end]


def starts_of(options: ReadOptions, client: Client, losses: Losses) -> StreamPosition:
    """Determine the starting position of a stream.

    Raises:
        OptionError, DataLossError, TidelogError: as `make_plan`.
    """
    topics = {topic.name: topic for topic in client.topics()}
    partitions = select(options.selection, {name: topic.partition_count for name, topic in topics.items()})
    starting = _look_up(client, options.starting, partitions, "startingOffsetsByTimestamp")
    begins, lost = resolve_starts(options, _bounds(client, partitions), starting)
    for each in lost:
        losses.lost(each)
    return StreamPosition(begins, {at.topic: topics[at.topic].topic_id.hex() for at in begins})


def bounds_of(options: ReadOptions, client: Client, *, all_named: bool = False) -> PartitionBounds:
    """Return the current bounds of the chosen partitions that exist.

    Args:
        options: the parsed options.
        client: sends the requests.
        all_named: whether all topics and partitions that the options name must exist.

    Raises:
        OptionError: with `all_named`, a topic or partition named in the options does not exist.
        TidelogError: a request of the client failed.
    """
    topics = {topic.name: topic for topic in client.topics()}
    chosen = select if all_named else select_present
    partitions = chosen(options.selection, {name: topic.partition_count for name, topic in topics.items()})
    bounds = _bounds(client, partitions)
    return PartitionBounds(bounds, {at.topic: topics[at.topic].topic_id.hex() for at in bounds})


def _bounds(client: Client, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
    bounds: dict[TopicPartition, Bounds] = {}
    for topic, numbers in _by_topic(partitions).items():
        for partition, answer in client.list_offsets(topic, "latest", numbers).items():
            bounds[TopicPartition(topic, partition)] = Bounds(answer.log_start_offset, answer.high_watermark)
    return bounds


def _look_up(
    client: Client, position: Position, partitions: Sequence[TopicPartition], name: str
) -> dict[TopicPartition, Lookup]:
    """Look up the offsets for the timestamps of a position, with one request for each timestamp and topic."""
    by_time: dict[int, list[TopicPartition]] = {}
    for at, timestamp_us in times_of(position, partitions, name).items():
        by_time.setdefault(timestamp_us, []).append(at)
    lookups: dict[TopicPartition, Lookup] = {}
    for timestamp_us, ats in by_time.items():
        moment = EPOCH + timedelta(microseconds=timestamp_us)
        for topic, numbers in _by_topic(ats).items():
            for partition, answer in client.list_offsets(topic, moment, numbers).items():
                lookups[TopicPartition(topic, partition)] = Lookup(answer.offset, answer.found)
    return lookups


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    result: dict[str, list[int]] = {}
    for at in partitions:
        result.setdefault(at.topic, []).append(at.partition)
    return result
