"""The client's result types: immutable values without connections."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final, Literal, NamedTuple, TypedDict, cast

import pyarrow as pa

from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.record_schema import columns_at

Flush = Literal["always", "interval", "never"]
Cleanup = Literal["delete", "compact", "compact,delete"]
Acks = Literal["quorum", "1", "all"]
Compression = Literal["gzip", "snappy", "lz4", "zstd"]


class TopicPartition(NamedTuple):
    """A partition of a topic: the topic's name and the partition number, from 0."""

    topic: str
    partition: int


NOT_STORED: Final = -1
"""Offset of a record that was dropped as a duplicate."""
NOT_KNOWN: Final = -2
"""Offset of a record that may have been dropped: some records of its batch were, but which ones is unknown."""


class Receipt(NamedTuple):
    """The position of an acknowledged record. `timestamp_us` is the node's append time, µs since 1970.

    In a topic that drops duplicates (`deduplicate_s`, `deduplicate_records`) the offset of a dropped record is -1.
    After a lost answer it may no longer be known which records of a batch were dropped: -2.
    """

    partition: int
    offset: int
    timestamp_us: int

    @property
    def duplicates(self) -> int:
        """1 if the record was dropped, otherwise 0."""
        return int(self.offset == NOT_STORED)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a partition, as its owner sees it: durable end, lag in records, and latency.

    `streaming` is False while it catches up from the log. `latency_us` is smoothed, from sending to acknowledgement.
    `missing_records` are those of `missing_epochs` earlier epochs that it still has to fetch: a new replica receives
    current records immediately and the history later. `copy_fault` is any other fault that it reports: "short" (its
    machine went down before everything was synced), "damaged" (damage was truncated from its end), "limbo" (it does not
    take part), "failed" (a disk error); "" for none.
    """

    node_id: str
    held_offset: int
    lag: int
    streaming: bool = True
    latency_us: int = 0
    missing_epochs: int = 0
    missing_records: int = 0
    copy_fault: str = ""


@dataclass(frozen=True, slots=True)
class NextDeletion:
    """The next deletion by retention in a partition: its oldest segment, all records before offset `below`.

    Attributes:
        below: end offset of the segment.
        size_bytes: of the segment.
        at_us: when the segment's newest record exceeds the retention time, µs since 1970; None without a time limit.
        bytes_more: bytes that the partition can still store before the size limit deletes the segment; None without a
            size limit.
    """

    below: int
    size_bytes: int
    at_us: int | None
    bytes_more: int | None


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a topic. Sizes are in bytes; offsets and sizes are 0 if only routing was requested.

    `replicas` are set in the cluster status and in the description of a topic, while the owner answers. The description
    of a topic also has the append times of the oldest and newest record, µs since 1970, 0 without records; the next
    deletion by retention, None for none; and the size of the part of the log that is not in the topic's indexes, which
    lookups scan.
    """

    partition: int
    owner: str
    epoch: int
    placement: tuple[str, ...] = ()
    log_start_offset: int = 0
    high_watermark: int = 0
    size_bytes: int = 0
    state: str = ""
    replicas: tuple[Replica, ...] = ()
    oldest_append_us: int = 0
    newest_append_us: int = 0
    next_deletion: NextDeletion | None = None
    unindexed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the node describes it. `topic_id` is 16 bytes: a recreated topic has another one.

    Records are deleted when they are older than `retention_ms` or the partition is larger than `retention_bytes`; 0 for
    no limit. `cleanup` selects deletion, compaction to the newest record of each key, or both. While `hold` is set
    nothing is deleted. A record is dropped if one of the last `deduplicate_records` records appended in the last
    `deduplicate_s` has the same content; a value of 0 for one of the two is ignored.
    """

    name: str
    topic_id: bytes
    partitions: tuple[Partition, ...] = ()
    flush: Flush = "always"
    flush_interval_ms: int = 0
    retention_bytes: int = 0
    segment_bytes: int = 0
    replication_factor: int = 1
    ack_quorum: int = 0
    engine: str = "segment"
    retention_ms: int = 0
    cleanup: Cleanup = "delete"
    compaction_lag_ms: int = 0
    tombstone_retention_ms: int = 0
    dirty_percent: int = 0
    index_key: bool = False
    index_tag: bool = False
    hold: bool = False
    deduplicate_s: int = 0
    deduplicate_records: int = 0
    count: int = 0
    """Number of partitions if the topic is listed without them; see `partition_count`."""

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions) or self.count


class TopicSettings(TypedDict, total=False):
    """Keyword arguments of `Client.create_topic` and `Client.alter_topic`, in addition to `partitions`.

    A setting that is missing or None gets the node's default in a new topic, and does not change in an existing one.
    The page Configuration lists the ranges and defaults.

    Attributes:
        flush: "always": a record is on disk before it is acknowledged; "interval": every `flush_interval_ms`; "never":
            when the operating system writes it.
        flush_interval_ms: time between two flushes, for "interval".
        retention_bytes: size that each partition keeps; the oldest segments beyond it are deleted. 0: no limit.
        segment_bytes: size of a segment file.
        replication_factor: copies of each partition.
        retention_ms: how long records are kept; a segment is deleted when all of its records are older. 0: for ever.
        cleanup: "delete" old segments by `retention_ms` and `retention_bytes`, "compact" to the newest record of each
            key, or "compact,delete" for both.
        compaction_lag_ms: records younger than this are not compacted.
        tombstone_retention_ms: how long a tombstone is kept after the first compaction that has read it.
        dirty_percent: compaction begins when this percentage of the log is not compacted, 1 to 100.
        index_key: keep an index of keys.
        index_tag: keep an index of tags.
        hold: delete and compact nothing, whatever the other settings are.
        engine: storage of the next epoch of each partition: "segment" for files, "memory", or the name of an engine
            that is installed on the nodes.
        deduplicate_s: drop a record if one of the same content was appended within so many seconds; 0: at any time.
        deduplicate_records: drop a record if one of so many records before it has the same content; 0: as many as the
            node keeps. With both settings, a record is dropped if both conditions hold; with neither, no record is
            dropped.
    """

    flush: Flush | None
    flush_interval_ms: int | None
    retention_bytes: int | None
    segment_bytes: int | None
    replication_factor: int | None
    retention_ms: int | None
    cleanup: Cleanup | None
    compaction_lag_ms: int | None
    tombstone_retention_ms: int | None
    dirty_percent: int | None
    index_key: bool | None
    index_tag: bool | None
    hold: bool | None
    deduplicate_s: int | None
    deduplicate_records: int | None
    engine: str | None


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Sums over the partitions of a topic.

    Attributes:
        topic_id: 16 bytes; a recreated topic has another one.
        partitions: number of partitions.
        records: high watermarks minus log start offsets of open partitions; an upper bound, as compaction leaves gaps.
        end_offsets: sum of the high watermarks of open partitions.
        size_bytes: of one replica of each partition.
        idle: partitions that no request has opened since their owner started; their offsets and sizes are unknown and
            not in the sums.
        unavailable: partitions that accept no records now: without a quorum, an owner, or a working disk.
        under_replicated: partitions with an incomplete copy, a copy on a node that is not alive, or too few copies.
    """

    topic_id: bytes
    partitions: int = 0
    records: int = 0
    end_offsets: int = 0
    size_bytes: int = 0
    idle: int = 0
    unavailable: int = 0
    under_replicated: int = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """A result of `list_offsets`.

    Attributes:
        offset: earliest, latest, or the first record with at least the timestamp (otherwise the high watermark).
        found: for a lookup by time, whether such a record exists; True for earliest and latest.
        timestamp_us: for a lookup by time, that record's timestamp; otherwise 0.
        log_start_offset: the first readable offset.
        high_watermark: the end of the readable offsets.
    """

    offset: int
    found: bool
    timestamp_us: int
    log_start_offset: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class Committed:
    """A group's position in one partition: `next_offset` is the next record to read.

    `epoch` is that of the record before it; None if the committing client had not read that record or did not report
    it.
    """

    topic: str
    partition: int
    next_offset: int
    note: str = ""
    commit_timestamp_us: int = 0
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A result of `fetch`.

    Attributes:
        batches: whole batches with records, in order; the first one is trimmed to the requested offset.
        next_offset: where to continue; it also advances over ranges that compaction has emptied.
        log_start_offset: the first readable offset.
        high_watermark: the end of the readable offsets.
        epoch: the partition's epoch as the answering node knows it.
    """

    batches: list[RecordBatch]
    next_offset: int
    log_start_offset: int
    high_watermark: int
    epoch: int


class Record(NamedTuple):
    """One consumed record. A `value` of None is a tombstone; `timestamp_us` is µs since 1970.

    Key and value are bytes or None, or the results of the consumer's deserializers.
    """

    topic: str
    partition: int
    offset: int
    timestamp_us: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    tag: str | None


@dataclass(frozen=True, slots=True)
class ConsumedBatch:
    """A record batch with its topic and partition. Iterate over it for records, or use its columns: `to_arrow`.

    The offsets of a compacted batch have gaps; the next batch begins at `batch.end_offset`.
    """

    topic: str
    partition: int
    batch: RecordBatch

    def __len__(self) -> int:
        return len(self.batch)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as columns, with the same schema for every batch (`record_schema.RECORDS_SCHEMA`).

        partition: int32, offset: int64, timestamp: µs in UTC, key, value: binary, headers: list of structs of key and
        value, tag: string. Missing keys, values and tags are null. The columns that the producer sent are not copied;
        `batch.columns()` returns only those.

        Raises:
            ProtocolError: CORRUPT_BATCH when the body does not decode.
        """
        return columns_at(self.batch, self.partition)

    def __iter__(self) -> Iterator[Record]:
        batch = self.batch
        return records_from(self.topic, self.partition, iter(batch.offset_list()), record_columns(batch))


class RecordColumns(NamedTuple):
    """Columns of records as iterables of equal length, or infinite ones where all records have the same value."""

    timestamps_us: Iterable[int]
    keys: Iterable[Any]
    values: Iterable[Any]
    headers: Iterable[tuple[tuple[str, bytes | None], ...]]
    tags: Iterable[str | None]


def record_columns(batch: RecordBatch) -> RecordColumns:
    """Return a batch's columns; values are a new list.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    flags = batch.header.flags
    return RecordColumns(
        batch.timestamps_us() if flags & Flags.TIMESTAMP else repeat(batch.header.base_timestamp_us),
        batch.keys() if flags & Flags.KEY else repeat(None),
        batch.values(),
        batch.headers() if flags & Flags.HEADERS else repeat(()),
        batch.tags() if flags & Flags.TAG else repeat(None),
    )


def records_from(topic: str, partition: int, offsets: Iterator[int], columns: RecordColumns) -> Iterator[Record]:
    """Return the records of columns, built by one C loop. Each record advances `offsets` by one."""
    rows = zip(repeat(topic), repeat(partition), offsets, *columns, strict=False)
    return cast("Iterator[Record]", map(tuple.__new__, repeat(Record), rows))


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, with its load. Sizes are bytes, `uptime_ms` milliseconds.

    `state` is what the node reports: running, disk_full (it refuses publishes), stopping or failed; "no answer" if it
    does not. `membership` is the state that the other nodes have detected: alive, suspect, dead, left or unknown;
    "" in a single-node cluster. A `draining` node gets no new replicas and gives its own away. `no_quorum` counts its
    partitions with too few replicas to be written. `certificate_ends_us` and `ca_ends_us` are when its certificate and
    its trusted CA expire, µs since 1970; None without TLS. `level` is the highest feature level that its build
    supports; None if the answering node does not support levels.
    """

    node_id: str
    host: str
    port: int
    zone: str = ""
    incarnation: int = 0
    alive: bool = True
    software: str = ""
    uptime_ms: int = 0
    connections: int = 0
    in_flight_bytes: int = 0
    data_bytes: int = 0
    disk_free_bytes: int = 0
    state: str = ""
    roles: tuple[str, ...] = ()
    membership: str = ""
    draining: bool = False
    no_quorum: int = 0
    certificate_ends_us: int | None = None
    ca_ends_us: int | None = None
    level: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as one node sees it. `level` is its feature level; None if that node does not support levels."""

    cluster_id: bytes
    nodes: tuple[Node, ...] = ()
    topics: tuple[Topic, ...] = ()
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of a recovery without a quorum.

    Attributes:
        epoch: the epoch that was ended.
        end_offset: its end, where the next epoch begins.
        unsafe: whether no quorum answered, so that acknowledged records may be lost.
    """

    epoch: int
    end_offset: int
    unsafe: bool


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of a compaction pass in one partition.

    Attributes:
        below: records below this offset have been compacted.
        size_bytes: size of the owner's log now.
    """

    below: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """A partition's owner as of `epoch`, and the nodes that hold a replica, as far as known."""

    owner: str
    epoch: int
    placement: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The routing information of a topic."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionRoute] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions)


GroupState = Literal["empty", "stable", "moving"]
"""Group state: no members, the target assignment is reached, or partitions are being moved."""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member of a group, with the partitions that it reads and its target assignment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    reads: tuple[TopicPartition, ...]
    is_to_read: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group.

    `members` is only set by `Groups.describe`. `last_commit_us` is None without a commit. `creator` is None if the
    group was created before group quotas existed, or without authentication.
    """

    name: str
    state: GroupState
    generation: int
    member_count: int
    position_count: int
    assignor: str | None
    coordinator: str
    last_commit_us: int | None
    members: tuple[GroupMemberInfo, ...] = ()
    creator: str | None = None


@dataclass(frozen=True, slots=True)
class Lag:
    """A group's lag in one partition, in offsets; without a position, the lag counts from the log start.

    `epoch` is as in `Committed`.
    """

    topic: str
    partition: int
    next_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: int
    commit_timestamp_us: int | None
    note: str | None
    epoch: int | None = None

    @property
    def end_offset(self) -> int:
        """Deprecated since 0.2, removed in 0.3: `high_watermark`."""
        warnings.warn("Lag.end_offset is deprecated, use Lag.high_watermark", DeprecationWarning, stacklevel=2)
        return self.high_watermark
