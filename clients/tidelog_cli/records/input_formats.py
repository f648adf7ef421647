"""Conversion of input into Arrow record batches of bounded size.

Arrow splits text into lines, so that small lines cost no Python object per record. A batch has a `value` column and, if
requested, `key` and `timestamp`. A Parquet or Arrow file with a `value` column is used as it is; other files become one
JSON object per row. The format `records` has all fields of records: see `json_records.py`.
Rejected: reading whole files, which takes memory, and detecting the format by content, which may detect a wrong one.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import note
from tidelog_cli.base.times import timestamp_us_of
from tidelog_cli.records.csv_rows import AnyArray, ByteReader, ColumnType, rows_of
from tidelog_cli.records.json_records import records_of
from tidelog_proto.batch.columns import TIMESTAMP_TYPE
from tidelog_proto.text.json_text import BYTE_ORDER_MARK, JsonNumber, exact_json, json_text, members
from tidelog_proto.text.record_lines import finite

CHUNK_BYTES: Final = 1 << 20
"""Size of one read of text, and of the read buffer of a Parquet file."""

LINE_BYTES_MAX: Final = 8 << 20
"""Maximum length of a line, which bounds memory; well below the limit of a batch."""

ROWS_PER_BATCH: Final = 8192
"""Rows of a Parquet or Arrow file that are read at once."""

_FILE_MAGIC: Final = b"ARROW1"
_SECONDS: Final = re.compile(r"(\d\d:\d\d:\d\d)(?:\.(\d+))?")


class Format(StrEnum):
    """The formats of input that `produce` reads."""

    LINES = "lines"
    NDJSON = "ndjson"
    RECORDS = "records"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


@dataclass(frozen=True, slots=True)
class Fields:
    """Sources of keys and timestamps in the input.

    Attributes:
        key: the JSON field or column for the key; None: no key from a field.
        timestamp: the JSON field or column for the timestamp, ISO 8601 or ms since 1970; None: not from a field.
        key_delimiter: separates the key at the start of a line from the value; only for the format `lines`.
        types: column -> type, where other columns are text; only for CSV.
        skip_rows: number of rows to skip after the header; only for CSV.
        delimiter: separates the fields (None: see `rows_of`); only for CSV.
    """

    key: str | None = None
    timestamp: str | None = None
    key_delimiter: bytes | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    skip_rows: int = 0
    delimiter: str | None = None


NO_FIELDS: Final = Fields()

_FORMAT_OF_SUFFIX: Final = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}


_LINES_SUFFIXES: Final = frozenset({"", ".txt", ".text", ".log", ".lines"})


def format_of(path: Path) -> Format:
    """Return the format for a file's extension.

    It is lines for text files, also rotated ones such as `app.log.1`, and for files without an extension.

    Raises:
        CommandFailed: the extension belongs to an unsupported format.
    """
    suffix = path.suffix.lower()
    if suffix in _LINES_SUFFIXES or (suffix[1:].isdecimal() and Path(path.stem).suffix.lower() in _LINES_SUFFIXES):
        return Format.LINES
    input_format = _FORMAT_OF_SUFFIX.get(suffix)
    if input_format is None:
        known = ", ".join(sorted((_LINES_SUFFIXES - {""}) | _FORMAT_OF_SUFFIX.keys()))
        raise CommandFailed(
            f"{path}: files of type {path.suffix} are not supported (supported: {known}); convert it to one of these, "
            "or give --format lines to publish each line unchanged, or another --format",
            EXIT_USAGE,
        )
    return input_format


def read_file(path: Path, file_format: Format, fields: Fields = NO_FIELDS) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file.

    Args:
        fields: sources of keys and timestamps.

    Raises:
        CommandFailed: the content does not match the format; the message has the file and, for text, the line.
        OSError: the file cannot be read.
    """
    try:
        if file_format is Format.PARQUET:
            with pq.ParquetFile(path, pre_buffer=False, buffer_size=CHUNK_BYTES) as parquet:
                yield from rows_as_records(parquet.iter_batches(ROWS_PER_BATCH), fields)
        elif file_format is Format.ARROW:
            yield from rows_as_records(arrow_batches(path), fields)
        else:
            with path.open("rb", buffering=0) as stream:
                yield from read_stream(stream, file_format, fields)
    except pa.ArrowInvalid as error:
        raise CommandFailed(
            f"{path} is not a valid {file_format} file: {error}; if it has another format, choose that with --format"
        ) from error
    except CommandFailed as error:
        raise CommandFailed(f"{path}: {error}") from error


def read_stream(stream: ByteReader, file_format: Format, fields: Fields = NO_FIELDS) -> Iterator[pa.RecordBatch]:
    r"""Yield the records of a byte stream, one per line (without its `\n`) or row of CSV, as they arrive.

    NDJSON and records skip blank lines; `lines` keeps them as empty values. The last line needs no newline. A byte
    order mark before the first line is removed with a note.

    Raises:
        CommandFailed: a line does not match the format, with its number in the message; or the format needs a file.
    """
    if file_format in {Format.PARQUET, Format.ARROW}:
        raise CommandFailed(f"{file_format} cannot be read from standard input; give the path of a file")
    if file_format is Format.CSV:
        yield from _csv_records(stream, fields)
        return
    first_line = 1
    for text in _whole_lines(stream):
        if first_line == 1 and text.startswith(BYTE_ORDER_MARK):
            text = text.removeprefix(BYTE_ORDER_MARK)  # noqa: PLW2901 - not part of the first line
            note("removed a UTF-8 byte order mark at the start of the input")
        lines = pc.split_pattern(pa.array([text], pa.binary()), "\n").flatten()
        if file_format is Format.RECORDS:
            batch = records_of([line or b"" for line in lines.to_pylist()], first_line)
        elif file_format is Format.NDJSON or fields.key is not None or fields.timestamp is not None:
            batch = _json_objects(lines, fields, first_line)
        elif fields.key_delimiter is not None:
            batch = _keyed_lines(lines, fields.key_delimiter, first_line)
        else:
            batch = pa.record_batch([lines], names=["value"])
        if batch is not None:
            yield batch
        first_line += len(lines)


def _csv_records(stream: ByteReader, fields: Fields) -> Iterator[pa.RecordBatch]:
    for rows in rows_of(stream, fields.types, fields.skip_rows, fields.delimiter):
        names = rows.fields.schema.names
        _check_names(names, fields)
        added: dict[str, AnyArray] = {}
        if fields.key is not None:
            added["key"] = _as_binary(rows.fields.column(fields.key))
        if fields.timestamp is not None:
            texts = rows.fields.column(fields.timestamp).to_pylist()
            moments = [int(text) if text and text.isdecimal() else text for text in texts]
            added["timestamp"] = _stamps(moments, fields.timestamp)
        yield pa.record_batch(rows.records | added)


def rows_as_records(batches: Iterable[pa.RecordBatch], fields: Fields = NO_FIELDS) -> Iterator[pa.RecordBatch]:
    """Yield records of columnar rows: a `value` column unchanged, otherwise a JSON object per row.

    Raises:
        CommandFailed: a column is missing or cannot be converted.
    """
    noted: set[str] = set()

    def tell_once(line: str) -> None:
        if line not in noted:
            noted.add(line)
            note(line)

    for rows in batches:
        if not rows.num_rows:
            continue
        names = rows.schema.names
        _check_names(names, fields)
        added: dict[str, AnyArray] = {}
        if fields.key is not None:
            added["key"] = _as_binary(rows.column(fields.key))
        if fields.timestamp is not None:
            added["timestamp"] = _as_timestamps(rows.column(fields.timestamp), fields.timestamp)
            if _has_rests(added["timestamp"]):
                tell_once(f"column {fields.timestamp!r}: timestamps are truncated to microseconds")
        if "value" in names:
            # The converted keys and timestamps replace their source columns.
            gone = {fields.key, fields.timestamp, *added} & {*names}
            fields_by_name = {name: rows.column(name) for name in names if name not in gone}
        else:
            documents = _python_rows(rows)
            sent = [finite(row) for row in documents]
            if sent != documents:  # `finite` has replaced a NaN or an infinity by None.
                tell_once(
                    "NaN and infinities are published as null, which JSON cannot represent; to keep them, publish a "
                    "`value` column of bytes"
                )
            values = [json.dumps(row, default=_json_default, allow_nan=False).encode() for row in sent]
            fields_by_name = {"value": pa.array(values, pa.binary())}
        yield pa.record_batch(fields_by_name | added)


def _whole_lines(stream: ByteReader) -> Iterator[bytes]:
    """Yield whole lines as soon as they are complete, several at a time, without the last newline."""
    pending: list[bytes] = []
    pending_bytes = 0
    number = 1
    while chunk := stream.read(CHUNK_BYTES):
        number += chunk.count(b"\n")
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*pending, head])
            pending, pending_bytes = [], 0
        if tail:
            pending.append(tail)
            pending_bytes += len(tail)
        if pending_bytes > LINE_BYTES_MAX:
            raise CommandFailed(
                f"line {number} is longer than {LINE_BYTES_MAX:,} bytes; publish such values from an Arrow file"
            )
    if pending:
        yield b"".join(pending)


def _keyed_lines(lines: AnyArray, delimiter: bytes, first_line: int) -> pa.RecordBatch:
    parts: Any = pc.split_pattern(lines, delimiter.decode(), max_splits=1)
    counts = pc.list_value_length(parts)
    without = pc.index(counts, 1).as_py()
    if without >= 0:
        raise CommandFailed(
            f"line {first_line + without} has no key delimiter {delimiter.decode()!r}; add it, or change "
            "--key-delimiter"
        )
    return pa.record_batch([pc.list_element(parts, 0), pc.list_element(parts, 1)], names=["key", "value"])


def _json_objects(lines: AnyArray, fields: Fields, first_line: int) -> pa.RecordBatch | None:
    """Return lines that are JSON objects, with keys and timestamps from their fields; None if all lines are blank."""
    values: list[bytes] = []
    keys: list[bytes | None] = []
    stamps_us: list[int] = []
    for number, line in enumerate(lines.to_pylist(), first_line):
        if not line or line.isspace():
            continue
        values.append(line)
        if fields.key is None and fields.timestamp is None:
            _check_object(line, number)
            continue
        document = _json_object(line, number)
        if fields.key is not None:
            keys.append(_key_of(_field(document, fields.key, number), fields.key, line))
        if fields.timestamp is not None:
            try:
                stamps_us.append(timestamp_us_of(_whole(_field(document, fields.timestamp, number))))
            except ValueError as error:
                raise CommandFailed(f"line {number}, field {fields.timestamp!r}: {error}") from error
    if not values:
        return None
    columns: dict[str, AnyArray] = {"value": pa.array(values, pa.binary())}
    if fields.key is not None:
        columns["key"] = pa.array(keys, pa.binary())
    if fields.timestamp is not None:
        columns["timestamp"] = pa.array(stamps_us, pa.int64()).cast(TIMESTAMP_TYPE)
    return pa.record_batch(columns)


def _check_object(line: bytes, number: int) -> None:
    try:
        text = json_text(line)
    except ValueError as error:
        raise CommandFailed(f"line {number} is not JSON: {error}") from error
    if not text.lstrip().startswith("{"):
        raise _no_object(number)


def _json_object(line: bytes, number: int) -> dict[str, Any]:
    try:
        document = exact_json(line)
    except ValueError as error:
        raise CommandFailed(f"line {number} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise _no_object(number)
    return document


def _no_object(number: int) -> CommandFailed:
    return CommandFailed(f"line {number} is not a JSON object; publish lines unchanged with --format lines")


def _field(document: dict[str, Any], name: str, number: int) -> Any:
    if name not in document:
        raise CommandFailed(f"line {number} has no field {name!r}; add it, or change --key-field or --timestamp-field")
    return document[name]


def _key_of(key: Any, name: str, line: bytes) -> bytes | None:
    """Return a key's bytes: the content of a string, or the exact text of another JSON value; None for null."""
    if key is None or isinstance(key, str):
        return None if key is None else key.encode()
    return [value for member, value in members(line.decode()) if member == name][-1].encode()


def _whole(stamp: Any) -> Any:
    if not isinstance(stamp, JsonNumber):
        return stamp
    if not stamp.removeprefix("-").isdecimal():
        raise ValueError(f"{stamp} is not a whole number of milliseconds since 1970")
    return int(stamp)


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of an Arrow file or stream."""
    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as reader:
                for at in range(reader.num_record_batches):
                    yield from _slices(reader.get_batch(at))
        else:
            with pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    yield from _slices(batch)


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, ROWS_PER_BATCH):
        yield batch.slice(start, ROWS_PER_BATCH)


def _as_binary(column: AnyArray) -> AnyArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _check_names(names: list[str], fields: Fields) -> None:
    for name in (fields.key, fields.timestamp):
        if name is not None and name not in names:
            raise CommandFailed(f"column {name!r} does not exist; the columns are {', '.join(names)}")


def _as_timestamps(column: AnyArray, name: str) -> AnyArray:
    """Return a column as times; integers are ms since 1970, text is ISO 8601."""
    if pa.types.is_timestamp(column.type) or pa.types.is_integer(column.type):
        if column.null_count:
            raise _without_time(name, column.null_count)
        return column  # The client converts and validates other types of timestamps.
    return _stamps(column.to_pylist(), name)


def _without_time(name: str, rows: int) -> CommandFailed:
    return CommandFailed(
        f"column {name!r} has no time in at least {rows:,} rows; add the times, or omit --timestamp-field"
    )


def _stamps(moments: list[Any], name: str) -> AnyArray:
    if None in moments:
        raise _without_time(name, moments.count(None))
    try:
        stamps_us = [timestamp_us_of(moment) for moment in moments]
    except ValueError as error:
        raise CommandFailed(f"column {name!r}: {error}") from error
    return pa.array(stamps_us, pa.int64()).cast(TIMESTAMP_TYPE)


def _has_rests(stamps: AnyArray) -> bool:
    """Return whether any time has a fraction of a microsecond."""
    if getattr(stamps.type, "unit", None) != "ns":
        return False
    whole = pc.multiply(pc.divide(stamps.cast(pa.int64()), 1000), 1000)
    return bool(pc.any(pc.not_equal(stamps.cast(pa.int64()), whole)).as_py())


def _python_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows as Python values; times in nanoseconds, which Python lacks, as ISO 8601 with all digits."""
    if not any(_has_nanoseconds(field.type) for field in rows.schema):
        return rows.to_pylist()
    columns = [
        [_python_of(scalar) for scalar in column] if _has_nanoseconds(column.type) else column.to_pylist()
        for column in rows.columns
    ]
    return [dict(zip(rows.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if getattr(kind, "unit", None) == "ns":
        return True
    parts: Any = kind
    if pa.types.is_dictionary(kind):
        return _has_nanoseconds(parts.value_type)
    return any(_has_nanoseconds(parts.field(at).type) for at in range(kind.num_fields))


def _python_of(scalar: Any) -> Any:
    if not scalar.is_valid or not _has_nanoseconds(scalar.type):
        return scalar.as_py()
    if isinstance(scalar, pa.DictionaryScalar):
        return _python_of(scalar.value)
    if isinstance(scalar, pa.StructScalar):
        return {name: _python_of(part) for name, part in scalar.items()}
    parts: Any = getattr(scalar, "values", ())
    if isinstance(scalar, pa.MapScalar):
        return [[_python_of(pair["key"]), _python_of(pair["value"])] for pair in parts]
    if isinstance(scalar, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)):
        return [_python_of(part) for part in parts]
    if pa.types.is_timestamp(scalar.type):
        whole, rest_ns = scalar.value // 1000, scalar.value % 1000
        moment: Any = pa.scalar(whole, pa.timestamp("us", scalar.type.tz)).as_py()
    elif pa.types.is_time(scalar.type):
        whole, rest_ns = scalar.value // 1000, scalar.value % 1000
        moment = pa.scalar(whole, pa.time64("us")).as_py()
    else:
        raise CommandFailed(f"a value of type {scalar.type} cannot be converted to JSON; add a `value` column of bytes")
    return _with_nanoseconds(moment.isoformat(), rest_ns)


def _with_nanoseconds(moment: str, rest_ns: int) -> str:
    """Return ISO 8601 in microseconds with the remaining nanoseconds appended."""
    if not rest_ns:
        return moment
    match = _SECONDS.search(moment)
    assert match is not None, "ISO 8601 in microseconds has seconds"
    fraction = (match[2] or "").ljust(6, "0")
    return f"{moment[: match.end(1)]}.{fraction}{rest_ns:03}{moment[match.end() :]}"


def _json_default(value: object) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    raise CommandFailed(
        f"a value of type {type(value).__name__} cannot be converted to JSON; add a `value` column of bytes"
    )
