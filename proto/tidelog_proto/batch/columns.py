"""The canonical columns of a record batch: types, order, and conversion of users' columns.

A batch has only the columns that its producer used, always in this order: `timestamp`, `key`, `value`, `headers`,
`tag`. `value` is always present. Batches contain no schema: the flags of the header name the columns, and this module
converts flags to a schema. Rejected: a schema message in every batch, which costs more than a small record and allows
types that readers do not expect.

A null key means no key, a null value is a tombstone, a null tag means no tag, and header values may be null.
Timestamps, header lists, headers and header keys are never null; a record without headers has an empty list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.header import COLUMN_FLAGS, Flags
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.process.epoch_units import FIRST_S, wrong_unit

Headers = Sequence[tuple[str, bytes | None]]
"""A record's headers: names and values in the order in which they were sent; names may repeat."""

TIMESTAMP_TYPE: Final = pa.timestamp("us", "UTC")
TIMESTAMP_US_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999. Timestamps outside 0 to this value are refused, because they usually have a
wrong unit."""
HEADER_TYPE: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS_TYPE: Final = pa.list_(HEADER_TYPE)
OFFSET_DELTA: Final = pa.field("offset_delta", pa.uint32())
"""First column of a derived batch: each record's offset minus the batch's base offset."""

_FIELDS: Final = (
    (Flags.TIMESTAMP, pa.field("timestamp", TIMESTAMP_TYPE)),
    (Flags.KEY, pa.field("key", pa.binary())),
    (Flags.VALUE, pa.field("value", pa.binary())),
    (Flags.HEADERS, pa.field("headers", HEADERS_TYPE)),
    (Flags.TAG, pa.field("tag", pa.string())),
)
FLAG_OF_NAME: Final[Mapping[str, int]] = {field.name: flag for flag, field in _FIELDS}
"""The columns of a batch in their order, by name."""
VALUE_SCHEMA: Final = pa.schema([pa.field("value", pa.binary())])


def schema_of(flags: int) -> pa.Schema:
    """Return the schema of the columns in `flags`; other bits are ignored."""
    return _schema_of(flags & COLUMN_FLAGS)


@lru_cache(maxsize=64)
def _schema_of(flags: int) -> pa.Schema:
    return pa.schema([field for flag, field in _FIELDS if flags & flag])


@lru_cache(maxsize=64)
def stored_schema_of(flags: int) -> pa.Schema:
    """Return the schema of a body with these flags; that of a derived batch begins with offset deltas."""
    columns = list(schema_of(flags))
    return pa.schema([OFFSET_DELTA, *columns] if flags & Flags.DERIVED else columns)


def flags_of(schema: pa.Schema) -> int:
    """Return the column flags of a canonical schema.

    Raises:
        TypeError: the schema is not canonical; convert the columns with `canonical`.
    """
    if schema is VALUE_SCHEMA or schema.equals(VALUE_SCHEMA):
        return Flags.VALUE
    flags = 0
    for name in schema.names:
        flags |= FLAG_OF_NAME.get(name, 0)
    if not flags & Flags.VALUE or not schema.equals(_schema_of(flags)):
        raise TypeError(
            f"expected the canonical columns of a record batch, got {_told(schema)}; convert them with "
            "tidelog_proto.batch.columns.canonical"
        )
    return flags


def import_for_columns() -> None:
    """Make Arrow import pandas now and in this thread, if it is installed, and not later for the first column.

    Called before another thread makes columns. If the process forked while that thread imports a module, the import
    would never complete in the child.
    """
    pa.array([b""], pa.binary())


def columns_of(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    timestamps_us: Sequence[int] | None = None,
    headers: Sequence[Headers | None] | None = None,
    tags: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """Build canonical columns from Python values; a batch has only the given columns.

    Args:
        values: one per record; None is a tombstone.
        keys: one per record; None for no key.
        timestamps_us: one per record, µs since 1970 (UTC).
        headers: one list of (name, value) per record; None for no headers.
        tags: one per record, at most `TAG_BYTES_MAX` bytes of UTF-8; None for no tag.

    Raises:
        TypeError: a value has a wrong type.
        ValueError: the columns differ in length, a timestamp is missing, or a tag is too long.
    """
    value = pa.array(values, pa.binary())
    if keys is None and timestamps_us is None and headers is None and tags is None:
        return pa.RecordBatch.from_arrays([value], schema=VALUE_SCHEMA)
    arrays: dict[str, pa.Array[Any]] = {"value": value}
    if timestamps_us is not None:
        arrays["timestamp"] = pa.array(timestamps_us, pa.int64()).view(TIMESTAMP_TYPE)
    if keys is not None:
        arrays["key"] = pa.array(keys, pa.binary())
    if headers is not None:
        arrays["headers"] = _headers_column(headers)
    if tags is not None:
        arrays["tag"] = pa.array(tags, pa.string())
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"all columns must have one entry per record; their lengths are {lengths}")
    return _assembled(arrays)


def canonical(record_batch: pa.RecordBatch) -> pa.RecordBatch:
    """Cast a user's Arrow columns to the canonical ones; canonical columns are returned unchanged.

    Columns may have any order and any type that Arrow can cast: strings, large, fixed-size, view and dictionary-encoded
    binaries; timestamps of any unit (truncated to µs; UTC if they have no time zone) or integers (ms since 1970);
    headers as lists of structs or as maps. Null header lists become empty ones.

    Raises:
        TypeError: a column is unknown, repeated, or of an unsupported type, or `value` is missing.
        ValueError: a null in a column without nulls, a value that does not fit its type, a time before 1970 or after
            9999, or a tag that is too long.
    """
    if record_batch.schema.equals(VALUE_SCHEMA):
        return record_batch
    names = record_batch.schema.names
    unknown = [name for name in names if name not in FLAG_OF_NAME]
    if unknown:
        raise TypeError(
            f"unknown columns {unknown}; a record has only the columns {list(FLAG_OF_NAME)}: rename or drop others"
        )
    if len(set(names)) != len(names) or "value" not in names:
        raise TypeError(f"columns must be unique and include value, got {names}")
    arrays: dict[str, pa.Array[Any]] = {}
    for name in names:
        target: pa.DataType = _schema_of(FLAG_OF_NAME[name]).field(0).type
        array: pa.Array[Any] = record_batch.column(name)
        arrays[name] = array if array.type.equals(target) else _cast(name, array, target)
    if "timestamp" in arrays:
        _check_timestamps(arrays["timestamp"])
    return _assembled(arrays)


def with_tight_headers(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return canonical columns whose header lists reference no data outside the batch.

    Arrow's writer truncates most slices to their own data. Only if a slice has no headers, the writer keeps the offsets
    of the whole array.
    """
    at = columns.schema.get_field_index("headers")
    if at < 0:
        return columns
    lists: Any = columns.column(at)
    if len(lists.flatten()):
        return columns
    return columns.set_column(at, "headers", no_headers(len(lists)))


def no_headers(count: int) -> pa.Array[Any]:
    """Return `count` empty lists, built from offsets of 0, because repeating an empty list is slow."""
    offsets = pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    return pa.ListArray.from_arrays(offsets, pa.nulls(0, HEADER_TYPE), type=HEADERS_TYPE)


def without_empty_lists(lists: Any) -> pa.Array[Any]:
    """Return the lists with null for each empty one, so that records without headers have null in every batch."""
    # `from_arrays` accepts a mask only with offsets that are not a slice, so they are copied.
    offsets = pa.array(lists.offsets.to_numpy())
    starts = offsets.to_numpy()
    without: pa.Array[Any] = pa.ListArray.from_arrays(offsets, lists.values, mask=pa.array(starts[1:] == starts[:-1]))
    return without


def _cast(name: str, array: Any, target: pa.DataType) -> pa.Array[Any]:
    """Cast one column; errors contain its name."""
    if name == "headers" and pa.types.is_map(array.type):
        # A map has the memory layout of a list of structs; Arrow has no kernel for the cast.
        array = array.cast(pa.map_(pa.string(), pa.binary()))
        array = array.view(pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])))
    if name == "timestamp" and pa.types.is_integer(array.type):
        array = _of_milliseconds(array)
    options = pc.CastOptions(target_type=target, allow_time_truncate=True)
    try:
        converted: pa.Array[Any] = array.cast(options=options)
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"column {name}: {array.type} cannot be cast to {target}; convert the column first") from error
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {name}: {error}") from error
    return converted


def _of_milliseconds(array: Any) -> pa.Array[Any]:
    # Only the extremes are checked: values between them have the same unit, or `_check_timestamps` refuses an extreme.
    late: Any = pc.min_max(array.filter(pc.greater_equal(array, pa.scalar(FIRST_S)))).as_py()
    for value in (late["min"], late["max"]):
        if value is not None and (reason := wrong_unit(value, "milliseconds", exact="a timestamp column with")):
            raise ValueError(f"column timestamp: {reason}")
    try:
        stamps: pa.Array[Any] = array.cast(pa.int64()).cast(pa.timestamp("ms", "UTC"))
    except pa.ArrowInvalid as error:
        raise ValueError(f"column timestamp: {error}; give integers in ms since 1970") from error
    return stamps


def _assembled(columns: Mapping[str, pa.Array[Any]]) -> pa.RecordBatch:
    """Check the rules that types do not express, and put the columns in order."""
    arrays: list[pa.Array[Any]] = []
    flags = 0
    for flag, field in _FIELDS:
        array = columns.get(field.name)
        if array is None:
            continue
        if field.name == "timestamp" and array.null_count:
            raise ValueError(
                f"column timestamp: {array.null_count} of {len(array)} records have no timestamp; set all of them, or "
                "omit the column"
            )
        if field.name == "headers":
            array = _without_null_lists(array)
        elif field.name == "tag":
            array = short_tags(array)
        arrays.append(array)
        flags |= flag
    return pa.RecordBatch.from_arrays(arrays, schema=_schema_of(flags))


def _headers_column(headers: Sequence[Headers | None]) -> pa.Array[Any]:
    """Build the headers column from flat lists, which is several times faster than from dictionaries."""
    offsets = [0]
    keys: list[str] = []
    values: list[bytes | None] = []
    for record in headers:
        for key, value in record or ():
            keys.append(key)
            values.append(value)
        offsets.append(len(keys))
    absent: Any = None
    if absent in keys:
        at = keys.index(absent)
        number = sum(offset <= at for offset in offsets)
        raise TypeError(f"the name of a header must be a str, got None in record {number} of {len(headers)}")
    pairs = pa.StructArray.from_arrays(
        [pa.array(keys, pa.string()), pa.array(values, pa.binary())], fields=list(_header_fields())
    )
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pairs).cast(HEADERS_TYPE)


def _header_fields() -> Iterable[pa.Field[Any]]:
    return (HEADER_TYPE.field(0), HEADER_TYPE.field(1))


def _without_null_lists(array: Any) -> pa.Array[Any]:
    """Return the headers column with null lists replaced by empty ones; refuse null headers and names."""
    if array.null_count:
        counts: Any = pc.list_value_length(array)
        ends: Any = pc.cumulative_sum(counts.fill_null(0))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
        array = pa.ListArray.from_arrays(offsets, array.flatten()).cast(HEADERS_TYPE)
    pairs = array.flatten()
    if pairs.null_count or pairs.field("key").null_count:
        raise ValueError("column headers: a header or its name is null; only its value may be null")
    return array  # type: ignore[no-any-return]  # the stubs lose the element type of list arrays


def _check_timestamps(stamps: Any) -> None:
    extremes: Any = pc.min_max(stamps.view(pa.int64()))
    for stamp_us in (extremes["min"].as_py(), extremes["max"].as_py()):
        if stamp_us is not None and not 0 <= stamp_us <= TIMESTAMP_US_MAX:
            raise ValueError(
                f"column timestamp: {stamp_us} µs since 1970 is outside the years 1970 to 9999; correct the value "
                "(integers are ms since 1970)"
            )


def short_tags(tags: Any) -> Any:
    """Return a column of tags; refuse one that is too long.

    Raises:
        ValueError: a tag has more than `TAG_BYTES_MAX` bytes.
    """
    longest = pc.max(pc.binary_length(tags)).as_py()
    if longest is not None and longest > TAG_BYTES_MAX:
        raise ValueError(
            f"a tag has {longest} bytes of UTF-8; the limit is {TAG_BYTES_MAX}: put longer text into a header"
        )
    return tags


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
