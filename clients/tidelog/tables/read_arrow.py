"""Topics as tables for whatever reads Arrow: Polars, DuckDB, pandas, Dask and the like.

    import tidelog

    reader = tidelog.read_arrow("flights", columns=["key", "value"])

A `pyarrow.RecordBatchReader` is what they all take. What it reads is decided when it is made, once; it reads as far as
somebody takes its batches, with the next fetch on its way meanwhile, so memory is bounded however long the topic is.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import pyarrow as pa

from tidelog.client_options import ClientOptions
from tidelog.errors import InvalidRequestError, OffsetOutOfRangeError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched, Offset
from tidelog.requests.offset_ranges import OffsetRange, fetch_options, fetch_range
from tidelog.tables.joined_batches import BatchJoiner, wire_batch
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA

if TYPE_CHECKING:
    from tidelog.sync.client import Client

Point = Literal["earliest", "latest"] | datetime | int | Mapping[int, int]
"""A point of a topic: an end of it, a time (a `datetime`, or µs since 1970), or an offset of each partition."""

TABLE_SCHEMA: Final = pa.schema([pa.field("topic", pa.string(), nullable=False), *RECORDS_SCHEMA])
"""All columns that a topic has as a table."""


BATCH_RECORDS: Final = 100_000
"""Rows of the largest batch, unless told."""


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
    **options: Unpack[ClientOptions],
) -> pa.RecordBatchReader:
    """Return a reader of a topic's records, partition by partition, each in the order of its offsets.

    Args:
        topic: its name.
        bootstrap: addresses of nodes; None: the context has them.
        context: its name; None: that of TIDELOG_CONTEXT, or the current one.
        columns: some of topic, partition, offset, timestamp, key, value, headers, tag, in this order; None: all. Others
            stay at the node as far as it can leave them out, and are not decoded.
        since: where to begin, that record included. A time that no record has yet is the end: no rows.
        until: where to end, that record excluded.
        partitions: which; None: all that there are.
        batch_records: rows of the largest batch.
        options: those of `Client`.

    Raises:
        InvalidRequestError: no such column or partition, a range that ends before it begins, or an offset to begin at
            behind the end.
        TidelogError: the cluster cannot be asked; also while batches are taken. Records that retention deletes before
            they are read are an `OffsetOutOfRangeError`.
    """
    if bootstrap is not None and context is not None:
        raise InvalidRequestError("bootstrap and context both say where the cluster is: give one of them")
    if batch_records < 1:
        raise InvalidRequestError(f"batch_records is at least 1, not {batch_records}")
    from tidelog.sync.client import Client  # noqa: PLC0415 - who imports tidelog does not pay for it

    schema = schema_of(columns)

    def connect() -> Client:
        return Client.from_context(context, **options) if bootstrap is None else Client(bootstrap, **options)

    with connect() as client:
        ranges = _ranges(client, topic, since, until, partitions)
    return pa.RecordBatchReader.from_batches(schema, read_ranges(connect, ranges, schema, batch_records))


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns, all for None.

    Raises:
        InvalidRequestError: there is no such column.
    """
    names = TABLE_SCHEMA.names if columns is None else list(columns)
    unknown = [name for name in names if name not in TABLE_SCHEMA.names]
    if unknown or not names or len(set(names)) != len(names):
        given = ", ".join(map(repr, names)) or "none"
        raise InvalidRequestError(f"columns are some of {', '.join(TABLE_SCHEMA.names)}, each once, not {given}")
    return pa.schema([TABLE_SCHEMA.field(name) for name in names])


def _ranges(
    client: Client, topic: str, since: Point, until: Point, partitions: Iterable[int] | None
) -> list[OffsetRange]:
    there = client.topic(topic)
    numbers = [each.partition for each in there.partitions] if partitions is None else list(partitions)
    if len(set(numbers)) != len(numbers):
        raise InvalidRequestError(f"partitions names one twice: {numbers}")
    starts, ends = (_offsets(client, topic, point, numbers) for point in (since, until))
    if isinstance(since, Mapping):
        _check_starts(topic, starts, client.list_offsets(topic, "latest", numbers))
    ranges = [OffsetRange(topic, number, starts[number], ends[number], there.topic_id) for number in numbers]
    for each in ranges:
        if each.end < each.start and isinstance(since, Mapping) and isinstance(until, Mapping):
            raise InvalidRequestError(
                f"partition {each.partition} ends at {each.end}, before it begins at {each.start}"
            )
    return [each for each in ranges if each.start < each.end]


def _check_starts(topic: str, starts: Mapping[int, int], there: Mapping[int, Offset]) -> None:
    for number, at in there.items():
        if starts[number] > at.high_watermark:
            raise InvalidRequestError(
                f"{topic!r}/{number} ends at {at.high_watermark}, before offset {starts[number]}, where since begins"
            )


def _offsets(client: Client, topic: str, point: Point, partitions: Sequence[int]) -> Mapping[int, int]:
    if isinstance(point, Mapping):
        if missing := [number for number in partitions if number not in point]:
            raise InvalidRequestError(f"no offset is given for partitions {missing}: name all, or choose `partitions`")
        return point
    return {number: at.offset for number, at in client.list_offsets(topic, point, partitions).items()}


def read_ranges(
    connect: Callable[[], Client], ranges: Sequence[OffsetRange], schema: pa.Schema, batch_records: int = BATCH_RECORDS
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the records of ranges, one after the other; whoever leaves early closes this.

    Args:
        connect: makes a client for this.
        ranges: none of them empty.
        schema: some columns of `TABLE_SCHEMA`.
        batch_records: rows of the largest batch.

    Raises:
        TidelogError: as `read_arrow`.
    """
    # Connected once somebody takes a batch: a reader that nobody uses holds nothing.
    with connect() as client:
        for wanted in ranges:
            options = fetch_options(wanted, schema)

            def fetch(offset: int, wanted: OffsetRange = wanted, options: FetchOptions = options) -> Fetched:
                return client.fetch(wanted.topic, wanted.partition, offset, **options)

            constants: dict[str, Any] = {
                "topic": pa.scalar(wanted.topic, pa.string()),
                "partition": pa.scalar(wanted.partition, pa.int32()),
            }
            joiner = BatchJoiner(schema, constants, max_records=batch_records)
            for batch in fetch_range(wanted, fetch, _lost):
                yield from joiner.add(wire_batch(batch, schema).cut(wanted.start, wanted.end))
            yield from joiner.finish()


def _lost(wanted: OffsetRange, start: int, end: int) -> None:
    raise OffsetOutOfRangeError(
        f"{wanted.topic!r}/{wanted.partition}: offsets {start} to {end - 1} are gone: retention deleted them, or the "
        "log ends before them; read what there is, or keep more"
    )
