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
from tidelog_proto.batch.row_reader import RowReader, row_reader
from tidelog_proto.schema.topic_schema import Schema

Flush = Literal["always", "interval", "never", "async"]
Cleanup = Literal["delete", "compact", "compact,delete"]
FileModel = Literal["per-partition", "shared"]
Acks = Literal["quorum", "1", "all"]
Compression = Literal["gzip", "snappy", "lz4", "zstd"]


class TopicPartition(NamedTuple):
    """A partition of a topic: the topic's name and the partition number, from 0."""

    topic: str
    partition: int


NOT_STORED: Final = -1
"""Offset of a record that was dropped as a duplicate."""
NOT_KNOWN: Final = -2
"""Offset of a record of a batch from which some records were dropped as duplicates, if it is unknown which ones."""


class Receipt(NamedTuple):
    """The position of an acknowledged record.

    Attributes:
        offset: offset of the record; -1 if it was dropped as a duplicate (`deduplicate_s`, `deduplicate_records`); -2
            if an answer was lost and the node no longer knows which records of the batch were dropped.
        timestamp_us: the node's append time, µs since 1970.
    """

    partition: int
    offset: int
    timestamp_us: int

    @property
    def duplicates(self) -> int:
        """1 if the record was dropped as a duplicate; 0 if it was stored or if that is unknown (offset -2)."""
        return int(self.offset == NOT_STORED)


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a partition, as its owner sees it.

    A new replica receives current records immediately and older epochs later.

    Attributes:
        held_offset: end of the records that the replica has stored durably.
        lag: number of records between the end of the replica and that of the owner.
        streaming: False while the replica catches up from the log.
        latency_us: average time from sending a batch to the replica's acknowledgement.
        missing_epochs: number of epochs whose records the replica still has to fetch: sealed ones, and the open one
            while the copy has a fault.
        missing_records: number of records of these sealed epochs.
        copy_fault: another fault that the replica reports: "short" (its machine crashed before all data was synced),
            "damaged" (damaged data was truncated from its end), "limbo" (it does not take part in replication),
            "failed" (a disk error); "" if no fault is known.
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
        below: the records below this offset are deleted: the end offset of the segment.
        size_bytes: size of the segment.
        at_us: when the last of the segment's records exceeds the retention time, µs since 1970; None if the topic has
            no retention time.
        bytes_more: bytes that the partition can still store before the size limit deletes the segment; None if the
            topic has no size limit.
    """

    below: int
    size_bytes: int
    at_us: int | None
    bytes_more: int | None


@dataclass(frozen=True, slots=True)
class StoredEpochs:
    """Consecutive epochs that are stored in the same way.

    Attributes:
        engine: "segment", "segment-shared" for the file model "shared", or the name of another engine.
    """

    first: int
    last: int
    engine: str


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition of a topic. Sizes are in bytes; offsets and sizes are 0 if only routing was requested.

    Attributes:
        replicas: set in the cluster status and in the description of a topic, if the owner answers. The attributes
            below are only set in the description.
        oldest_append_us, newest_append_us: append times of the first and the last record, µs since 1970; 0 if there are
            no records or the time is unknown.
        next_deletion: the next deletion by retention; None if nothing will be deleted.
        unindexed_bytes: size of the part of the log that is not in the topic's indexes, so that lookups scan it.
        stored: how the epochs of the log are stored on the owner.
        unapplied: values of `flush`, `engine` and `file_model` of before a change that the partition still has, and
            why, as text; empty if it has those of the topic.
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
    stored: tuple[StoredEpochs, ...] = ()
    unapplied: str = ""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the node describes it. The other attributes are the settings of the topic, see `TopicSettings`.

    Attributes:
        topic_id: 16 bytes; a recreated topic has another one.
        partitions: the partitions; empty if the topic is listed without them.
        ack_quorum: number of replicas that must store a record before it is acknowledged with `acks="quorum"`; 0: a
            majority.
        schema_number: number of the newest schema that the answering node knows; 0: the topic is not typed.
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
    file_model: FileModel = "per-partition"
    schema_number: int = 0

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions) or self.count


class TopicSettings(TypedDict, total=False):
    """Keyword arguments of `Client.create_topic` and `Client.alter_topic`, in addition to `partitions`.

    A setting that is missing or None gets the node's default in a new topic, and does not change in an existing one.
    The page Configuration lists the ranges and defaults.

    Attributes:
        flush: when records are written to disk. "always": before they are acknowledged; "interval": every
            `flush_interval_ms`; "never": when the operating system writes them; "async": in the background, for topics
            with `engine="memory"`.
        flush_interval_ms: time between two flushes, for "interval".
        retention_bytes: maximum size of each partition; beyond it, the segments with the lowest offsets are deleted. 0:
            no limit.
        segment_bytes: size of a segment file.
        replication_factor: number of replicas of each partition.
        retention_ms: how long records are kept; a segment is deleted when all of its records are older. 0: for ever.
        cleanup: "delete" old segments by `retention_ms` and `retention_bytes`, "compact" to the newest record of each
            key, or "compact,delete" for both.
        compaction_lag_ms: records younger than this are not compacted.
        tombstone_retention_ms: how long a tombstone is kept after the first compaction that included it.
        dirty_percent: compaction begins when this percentage of the log, 1 to 100, was written since the last
            compaction.
        index_key: keep an index of keys.
        index_tag: keep an index of tags.
        hold: delete and compact nothing, whatever the other settings are.
        deduplicate_s: drop a record if one of the same content was appended within this many seconds before it; 0: at
            any time before it.
        deduplicate_records: drop a record if one of this many records before it has the same content; 0: as many as the
            node keeps. With both settings, a record is dropped if both conditions hold; with neither, no record is
            dropped.
        engine: storage of new records: "segment" for files, "memory", or the name of an engine that is installed on
            the nodes.
        file_model: files of new records, for engine "segment". "per-partition": each partition has its own; "shared":
            the newest records of many small partitions are in one log of each node.
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
    file_model: FileModel | None


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Sums over the partitions of a topic.

    Attributes:
        topic_id: 16 bytes; a recreated topic has another one.
        partitions: number of partitions.
        records: high watermarks minus log start offsets of open partitions; an upper bound, as compaction leaves gaps.
        end_offsets: sum of the high watermarks of open partitions.
        size_bytes: total size of one replica of each open partition.
        idle: partitions that no request has opened since their owner started; their offsets and sizes are unknown and
            not in the sums.
        unavailable: partitions that accept no records now: without a quorum, an owner, or a working disk.
        under_replicated: partitions with an incomplete replica, a replica on a node that is not alive, or fewer
            replicas than the replication factor (or than nodes, if the cluster has fewer nodes).
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
    """The offset of a point in the log, as `list_offsets` returns it.

    Attributes:
        offset: the requested offset: the log start, the high watermark, or that of the first record with the timestamp
            or a later one (the high watermark if no record has it).
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
    """A group's position in one partition.

    Attributes:
        next_offset: offset of the next record to read.
        note: stored with the position by the committing client.
        commit_timestamp_us: time of the commit, µs since 1970.
        epoch: epoch of the record before the position; None if the position was set by a reset, or if the committing
            client had not read that record or is of a release that does not report epochs.
    """

    topic: str
    partition: int
    next_offset: int
    note: str = ""
    commit_timestamp_us: int = 0
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """The batches that a `fetch` has read, and where to continue.

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
    schema: Schema | None = None
    """In a typed topic the schema of the rows: the newest that the client knows, with `columns` the newest when the
    subscription began. None: that of the batch."""
    columns: tuple[str, ...] | None = None
    """In a typed topic the fields that the consumer reads, in order; None: all. Nodes may omit others."""

    def __len__(self) -> int:
        return len(self.batch)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the records as columns, with the same schema for every batch (`record_schema.RECORDS_SCHEMA`).

        partition: int32, offset: int64, timestamp: µs in UTC, key, value: binary, headers: list of structs of key and
        value, tag: string. Missing keys, values and tags are null. The columns that the producer sent are not copied;
        `batch.columns()` returns only those.

        In a typed topic the columns are the fields of `schema` or those in `columns`, then `_partition`, `_offset`,
        `_timestamp`, `_key`, `_headers` and `_tag`; `_key` and `_tag` only if no field has that role. Tombstones are
        left out.

        Raises:
            ValueError: the schema lacks one of `columns`.
            ProtocolError: CORRUPT_BATCH when the body does not decode.
        """
        if (reader := self.reader()) is not None:
            return reader.record_table(self.batch, self.partition)
        return columns_at(self.batch, self.partition)

    def __iter__(self) -> Iterator[Record]:
        batch, reader = self.batch, self.reader()
        values = batch.values() if reader is None else reader.rows(batch)
        return records_from(self.topic, self.partition, iter(batch.offset_list()), record_columns(batch, values))

    def reader(self) -> RowReader | None:
        """Return the reader of the rows; None in an untyped topic.

        Raises:
            ValueError: the schema lacks one of `columns`.
        """
        layout = self.batch.layout
        if layout is None:
            return None
        schema = self.schema or layout.schema
        names = {field.name for field in schema.fields}
        if unknown := [name for name in self.columns or () if name not in names]:
            raise ValueError(
                f"columns {unknown} are not fields of schema {schema.number} of topic {self.topic!r}; it has "
                f"{sorted(names)}"
            )
        return row_reader(layout.schema, schema, self.columns)


class RecordColumns(NamedTuple):
    """Columns of records as iterables of equal length; a column whose value is the same in all records is infinite."""

    timestamps_us: Iterable[int]
    keys: Iterable[Any]
    values: Iterable[Any]
    headers: Iterable[tuple[tuple[str, bytes | None], ...]]
    tags: Iterable[str | None]


def record_columns(batch: RecordBatch, values: list[Any]) -> RecordColumns:
    """Return the columns of a batch with these values; None for tombstones.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    flags = batch.header.flags
    return RecordColumns(
        batch.timestamps_us() if flags & Flags.TIMESTAMP else repeat(batch.header.base_timestamp_us),
        batch.keys() if flags & Flags.KEY else repeat(None),
        values,
        batch.headers() if flags & Flags.HEADERS else repeat(()),
        batch.tags() if flags & Flags.TAG else repeat(None),
    )


def records_from(topic: str, partition: int, offsets: Iterator[int], columns: RecordColumns) -> Iterator[Record]:
    """Return an iterator over the records of columns. Each record that is taken advances `offsets` by one."""
    rows = zip(repeat(topic), repeat(partition), offsets, *columns, strict=False)
    # `tuple.__new__` in a `map` creates a record without a Python call for each.
    return cast("Iterator[Record]", map(tuple.__new__, repeat(Record), rows))


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, with its load.

    Attributes:
        state: the state that the node reports: running, disk_full (it refuses publishes), stopping or failed; "no
            answer" if the node does not answer.
        membership: the state that the other nodes have detected: alive, suspect, dead, left or unknown; "" in a
            single-node cluster.
        draining: whether the node gets no new replicas, and its replicas are moved to other nodes.
        no_quorum: number of its partitions that accept no records, because too few of their replicas are available.
        certificate_ends_us, ca_ends_us: when its certificate and its trusted CA expire, µs since 1970; None without
            TLS.
        level: the highest feature level that its build supports; None if the answering node does not support levels.
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
    """The result of the compaction of one partition.

    Attributes:
        below: records below this offset have been compacted.
        size_bytes: size of the owner's log after the compaction.
    """

    below: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionRoute:
    """A partition's owner as of `epoch` ("" if unknown), and the nodes that hold a replica, as far as known."""

    owner: str
    epoch: int
    placement: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """The routing information of a topic."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, PartitionRoute] = field(default_factory=dict)
    schema_number: int = 0
    """Number of the newest known schema; 0: the topic is not typed."""

    @property
    def partition_count(self) -> int:
        """The number of partitions."""
        return len(self.partitions)


GroupState = Literal["empty", "stable", "moving"]
"""Group state: no members, the target assignment is reached, or partitions are being moved."""


@dataclass(frozen=True, slots=True)
class GroupMemberInfo:
    """A member of a group.

    Attributes:
        instance_id: id of a static member; None if the member is not static.
        reads: the partitions that it reads, or has not released yet.
        is_to_read: the partitions of its target assignment.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    reads: tuple[TopicPartition, ...]
    is_to_read: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A consumer group.

    Attributes:
        position_count: number of partitions with a committed position.
        last_commit_us: time of the last commit, µs since 1970; None if the group has no positions.
        members: only set by `Groups.describe`.
        creator: the principal that created the group; None if the group was created before group quotas existed, or
            without authentication.
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
    """A group's lag in one partition.

    Attributes:
        next_offset: offset of the next record to read; None if the group has no position in the partition.
        lag: number of offsets from `next_offset`, or the log start if that is higher or there is no position, to the
            high watermark.
        commit_timestamp_us, note, epoch: as in `Committed`; None without a position.
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
