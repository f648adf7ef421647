"""Topics as Arrow tables, for Polars, DuckDB, pandas, Dask and other Arrow consumers.

    import tidelog

    reader = tidelog.read_arrow("flights", columns=["key", "value"])

All of these libraries accept a `pyarrow.RecordBatchReader`. The offset ranges of the reader are fixed when it is
created. The reader fetches on demand with one fetch ahead, so memory is bounded for topics of any length.

`dataset` and `scan_polars` return a topic as a table that an engine scans on demand, with the columns of its query.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import pyarrow as pa

from tidelog.client_options import ClientOptions
from tidelog.errors import InvalidRequestError, OffsetOutOfRangeError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched, Offset
from tidelog.requests.offset_ranges import OffsetRange, fetch_options, fetch_range
from tidelog.rows.row_filter import Where, WhereFilter
from tidelog.tables.joined_batches import BatchJoiner, wire_batch
from tidelog.tables.typed_tables import TableJoiner, TypedTable, columns_of_table
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.process.epoch_units import wrong_unit
from tidelog_proto.schema.topic_schema import Schema

if TYPE_CHECKING:
    import polars as pl

    from tidelog.sync.client import Client
    from tidelog.tables.topic_dataset import TopicDataset

Point = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""A point in a topic: its start or end, a time (a `datetime`, or µs since 1970), or an offset for each partition."""

TABLE_SCHEMA: Final = pa.schema([pa.field("topic", pa.string(), nullable=False), *RECORDS_SCHEMA])
"""All columns of a topic as a table."""

BATCH_RECORDS: Final = 100_000
"""Default maximum number of rows of a batch."""


class RangeOptions(ClientOptions, total=False):
    """The arguments of `read_arrow` without `columns` and `where`; documented there."""

    bootstrap: str | Sequence[str] | None
    context: str | None
    since: Point
    until: Point
    partitions: Iterable[int] | None
    batch_records: int
    tombstones: bool


def read_arrow(
    topic: str,
    *,
    bootstrap: str | Sequence[str] | None = None,
    context: str | None = None,
    columns: Sequence[str] | None = None,
    since: Point = "earliest",
    until: Point = "latest",
    partitions: Iterable[int] | None = None,
    batch_records: int = BATCH_RECORDS,
    tombstones: bool = False,
    where: Where | None = None,
    **options: Unpack[ClientOptions],
) -> pa.RecordBatchReader:
    """Return a reader of a topic's records, partition by partition, each in the order of its offsets.

    Args:
        topic: the topic's name.
        bootstrap: addresses of nodes; None: the addresses of the context.
        context: the name of a context; None: the context that TIDELOG_CONTEXT names, or the current one.
        columns: names of the columns to return, in the wanted order, from topic, partition, offset, timestamp, key,
            value, headers, tag; None: all. The node does not send other columns if it can omit them, and they are not
            decoded. In a typed topic: the fields of the schema (None: all of them), and _partition, _offset,
            _timestamp, _headers, and _key and _tag if no field has that role.
        since: start of the range, inclusive: "earliest", "latest", a time (`datetime`, or µs since 1970), or
            {partition: offset}. With a time, each partition begins at its first record with that timestamp or a later
            one; a time after the last record gives no rows.
        until: end of the range, exclusive, in the same forms; at or before the start: no rows.
        partitions: the partitions to read; None: all.
        batch_records: maximum number of rows of a batch.
        tombstones: in a typed topic, whether tombstones are rows, too, which a last column `_deleted` marks.
        where: in a typed topic, return only rows that match: a text such as "delay > 190 and carrier in ('UA', 'AA')",
            or a `pyarrow.compute` expression.
        options: options of `Client`.

    Raises:
        InvalidRequestError: a column does not exist, `since` or `until` lacks a partition, a start offset is beyond the
            end of the log or greater than an end offset, an integer is a time in another unit than µs, `batch_records`
            is < 1, `where` does not fit the schema, or both `bootstrap` and `context` are given.
        TidelogError: a request failed; also raised while batches are read. Records that retention deletes before they
            are read raise `OffsetOutOfRangeError`.
    """
    taken = take_snapshot(
        topic,
        bootstrap=bootstrap,
        context=context,
        since=since,
        until=until,
        partitions=partitions,
        batch_records=batch_records,
        tombstones=tombstones,
        where=where,
        **options,
    )
    schema, batches = taken.read(columns)
    return pa.RecordBatchReader.from_batches(schema, batches)


def dataset(
    topic: str,
    **options: Unpack[RangeOptions],
) -> TopicDataset:
    """Return a topic as a `pyarrow.dataset.Dataset`, for DuckDB, pandas and other users of pyarrow.

    The range is fixed at the call, and each scan reads the same records, with a connection of its own and in bounded
    memory. The columns of a typed topic are its fields, then `_partition`, `_offset`, `_timestamp`, `_headers`, and
    `_key` and `_tag` if no field has that role; those of another topic are as in `read_arrow`.

    Args:
        topic: the topic's name.
        options: `bootstrap`, `context`, `since`, `until`, `partitions`, `batch_records` and `tombstones` as in
            `read_arrow`, and options of `Client`.

    Raises:
        InvalidRequestError: as `read_arrow`.
        TidelogError: a request failed; also raised by scans.
    """
    from tidelog.tables.topic_dataset import TopicDataset  # noqa: PLC0415 - keeps `import tidelog` fast

    taken = take_snapshot(topic, **options)
    return TopicDataset(taken.columns, taken.read, "offset" if taken.schema is None else "_offset")


def scan_polars(
    topic: str,
    **options: Unpack[RangeOptions],
) -> pl.LazyFrame:
    """Return a topic as a lazy frame of Polars, with the range, columns and arguments of `dataset`.

    A query reads the columns that it needs, and ends the read when it has enough rows. Polars applies its predicates.

    Raises:
        ImportError: Polars is not installed.
        InvalidRequestError: as `read_arrow`.
        TidelogError: a request failed; also raised by queries.
    """
    try:
        from tidelog.tables.polars_source import lazy_frame  # noqa: PLC0415 - Polars is optional
    except ImportError as error:
        raise ImportError("scan_polars requires Polars; run: pip install polars") from error
    taken = take_snapshot(topic, **options)
    return lazy_frame(taken.columns, taken.read)


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """The records of a topic between offsets that do not change, which may be read any number of times.

    Attributes:
        connect: creates a client.
        ranges: the offsets, by partition; none is empty.
        schema: the schema of the rows; None if the topic is not typed.
        batch_records: maximum number of rows of a batch.
        tombstones: whether tombstones of a typed topic are rows, too.
        where: the filter of the rows of a typed topic; None for all.
    """

    connect: Callable[[], Client]
    ranges: Sequence[OffsetRange]
    schema: Schema | None
    batch_records: int = BATCH_RECORDS
    tombstones: bool = False
    where: WhereFilter | None = None

    @property
    def columns(self) -> pa.Schema:
        """All columns, in order: those of a record, or the fields, those of a record, and `_deleted`."""
        if self.schema is None:
            return TABLE_SCHEMA
        return columns_of_table(self.schema, tombstones=self.tombstones)

    def read(self, columns: Sequence[str] | None) -> tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]:
        """Return the schema of some columns, and their rows; a caller that stops early must close the generator.

        Args:
            columns: names of columns, in order. Tombstones, if they are rows, are marked in a last column `_deleted`,
                whether it is named or not. None: all columns of an untyped topic, all fields of a typed one.

        Raises:
            InvalidRequestError: a column does not exist or is repeated, or none is given.
        """
        if self.schema is None:
            schema = schema_of(columns)
            return schema, read_ranges(self.connect, self.ranges, schema, self.batch_records)
        names = columns
        if columns is not None and self.tombstones:
            names = [name for name in columns if name != DELETED]
        typed = TypedTable(self.schema, names, tombstones=self.tombstones, where=self.where)
        return typed.arrow, read_typed_ranges(self.connect, self.ranges, typed, self.batch_records)


def take_snapshot(
    topic: str,
    *,
    bootstrap: str | Sequence[str] | None = None,
    context: str | None = None,
    since: Point = "earliest",
    until: Point = "latest",
    partitions: Iterable[int] | None = None,
    batch_records: int = BATCH_RECORDS,
    tombstones: bool = False,
    where: Where | None = None,
    **options: Unpack[ClientOptions],
) -> TopicSnapshot:
    """Return the range of a topic and, if it is typed, its newest schema; see `read_arrow`.

    Raises:
        TidelogError: as `read_arrow`.
    """
    if bootstrap is not None and context is not None:
        raise InvalidRequestError("bootstrap and context both name a cluster; pass only one of them")
    if batch_records < 1:
        raise InvalidRequestError(f"batch_records must be >= 1, got {batch_records}")
    row_filter = None if where is None else WhereFilter(where)
    from tidelog.sync.client import Client  # noqa: PLC0415 - keeps `import tidelog` fast

    def connect() -> Client:
        return Client.from_context(context, **options) if bootstrap is None else Client(bootstrap, **options)

    with connect() as client:
        ranges, is_typed = _ranges(client, topic, since, until, partitions)
        if tombstones and not is_typed:
            raise InvalidRequestError(
                f"topic {topic!r} is not typed: tombstones are rows whose value is null; leave tombstones out"
            )
        # Ends first, schemas second: all records below the ends have a schema that is known then.
        if where is not None and not is_typed:
            raise InvalidRequestError(
                f"topic {topic!r} is not typed: its rows have no fields that a filter could test; leave where out"
            )
        schema = client.schema(topic) if is_typed else None
    return TopicSnapshot(connect, ranges, schema, batch_records, tombstones, row_filter)


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of columns; None: all columns.

    Raises:
        InvalidRequestError: a column does not exist, is repeated, or none is given.
    """
    names = TABLE_SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in TABLE_SCHEMA.names]
    if unknown or not names or len(set(names)) != len(names):
        listing = ", ".join(map(repr, names)) or "none"
        raise InvalidRequestError(f"columns must be distinct names of {', '.join(TABLE_SCHEMA.names)}, got {listing}")
    return pa.schema([TABLE_SCHEMA.field(name) for name in names])


def _ranges(
    client: Client, topic: str, since: Point, until: Point, partitions: Iterable[int] | None
) -> tuple[list[OffsetRange], bool]:
    """Return the ranges that are not empty, and whether the topic is typed."""
    described = client.topic(topic)
    numbers = [each.partition for each in described.partitions] if partitions is None else list(partitions)
    if len(set(numbers)) != len(numbers):
        raise InvalidRequestError(f"partitions must be distinct, got {numbers}")
    for name, point in (("since", since), ("until", until)):
        if isinstance(point, int) and (reason := wrong_unit(point, "microseconds", exact="the datetime")):
            raise InvalidRequestError(f"{name}: {reason}")
    starts, ends = (_offsets(client, topic, point, numbers) for point in (since, until))
    if isinstance(since, Mapping):
        _check_starts(topic, starts, client.list_offsets(topic, "latest", numbers))
    ranges = [OffsetRange(topic, number, starts[number], ends[number], described.topic_id) for number in numbers]
    for each in ranges:
        if each.end < each.start and isinstance(since, Mapping) and isinstance(until, Mapping):
            raise InvalidRequestError(
                f"until must not be before since, got until {each.end} and since {each.start} for partition "
                f"{each.partition}"
            )
    return [each for each in ranges if each.start < each.end], described.schema_number > 0


def _check_starts(topic: str, starts: Mapping[int, int], ends: Mapping[int, Offset]) -> None:
    for number, at in ends.items():
        if starts[number] > at.high_watermark:
            raise InvalidRequestError(
                f"since must not be beyond the end of the log: {topic!r}/{number} ends at offset {at.high_watermark}, "
                f"got {starts[number]}"
            )


def _offsets(client: Client, topic: str, point: Point, partitions: Sequence[int]) -> Mapping[int, int]:
    if isinstance(point, Mapping):
        if missing := [number for number in partitions if number not in point]:
            raise InvalidRequestError(
                f"since and until must have an offset for each partition, got none for {missing}; "
                "add them, or pass `partitions` without these"
            )
        return point
    return {number: at.offset for number, at in client.list_offsets(topic, point, partitions).items()}


def read_ranges(
    connect: Callable[[], Client], ranges: Sequence[OffsetRange], schema: pa.Schema, batch_records: int = BATCH_RECORDS
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of ranges, one after the other; a caller that stops early must close the generator.

    Args:
        connect: creates a client.
        ranges: non-empty ranges.
        schema: some columns of `TABLE_SCHEMA`.
        batch_records: maximum number of rows of a batch.

    Raises:
        TidelogError: as `read_arrow`.
    """
    # Connected with the first batch, so that an unused reader holds no connection.
    with connect() as client:
        for span in ranges:
            options = fetch_options(span, schema)

            def fetch(offset: int, span: OffsetRange = span, options: FetchOptions = options) -> Fetched:
                return client.fetch(span.topic, span.partition, offset, **options)

            constants: dict[str, Any] = {
                "topic": pa.scalar(span.topic, pa.string()),
                "partition": pa.scalar(span.partition, pa.int32()),
            }
            joiner = BatchJoiner(schema, constants, max_records=batch_records)
            for batch in fetch_range(span, fetch, _lost):
                yield from joiner.add(wire_batch(batch, schema).cut(span.start, span.end))
            yield from joiner.finish()


def read_typed_ranges(
    connect: Callable[[], Client], ranges: Sequence[OffsetRange], typed: TypedTable, batch_records: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the rows of ranges of a typed topic; see `read_ranges`."""
    with connect() as client:
        for span in ranges:
            options = fetch_options(span)
            typed.narrow(options)

            def fetch(offset: int, span: OffsetRange = span, options: FetchOptions = options) -> Fetched:
                return client.fetch(span.topic, span.partition, offset, **options)

            joiner = TableJoiner(max_records=batch_records)
            for batch in fetch_range(span, fetch, _lost):
                yield from joiner.add(typed.table(batch, span.partition, span.start, span.end))
            yield from joiner.finish()


def _lost(span: OffsetRange, start: int, end: int) -> None:
    raise OffsetOutOfRangeError(
        f"{span.topic!r}/{span.partition}: offsets {start} to {end - 1} cannot be read any more: retention deleted "
        "them, the log was truncated, or nodes that had them in memory restarted; read from the start of the log, or "
        f"from offset {end}, or raise the topic's retention"
    )
