"""Read what is to be published as Arrow record batches, a bounded piece at a time.

Text is cut into lines by Arrow, not by Python, so that a file of small lines costs no object per record. What a
batch has is a `value` column and, where asked for, a `key` column; a Parquet or Arrow file that has a `value` column
of its own is taken as it is, and one with other columns becomes a JSON object per row.
Rejected: reading a whole file (memory), and guessing the format from the content (surprises).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog_cli.failures import CommandFailed

CHUNK_BYTES: Final = 1 << 20
"""Text read at once."""

LINE_BYTES_MAX: Final = 8 << 20
"""A longer line is refused: it is the bound on memory, and well below what a batch may hold."""

ROWS_PER_BATCH: Final = 8192
"""Rows of a Parquet or Arrow file taken at once."""

_FILE_MAGIC: Final = b"ARROW1"

AnyArray: TypeAlias = "pa.Array[Any]"


class ByteReader(Protocol):
    """A raw byte stream: a read gives what is there, not all that was asked for."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; none at the end."""


class Format(StrEnum):
    """How the input is cut into records."""

    LINES = "lines"
    NDJSON = "ndjson"
    PARQUET = "parquet"
    ARROW = "arrow"


_FORMAT_OF_SUFFIX: Final = {
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".parquet": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".feather": Format.ARROW,
    ".ipc": Format.ARROW,
}


def format_of(path: Path) -> Format:
    """Return the format that a file's extension names; lines if it names none."""
    return _FORMAT_OF_SUFFIX.get(path.suffix.lower(), Format.LINES)


def read_file(path: Path, file_format: Format, key_field: str | None) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file.

    Args:
        path: the file.
        file_format: how to cut it.
        key_field: the field (NDJSON) or column (Parquet, Arrow) whose value becomes the key.

    Raises:
        CommandFailed: the content is not what the format says; names the file and, for text, the line.
        OSError: the file cannot be read.
    """
    try:
        if file_format is Format.PARQUET:
            with pq.ParquetFile(path) as parquet:
                yield from rows_as_records(parquet.iter_batches(ROWS_PER_BATCH), key_field)
        elif file_format is Format.ARROW:
            yield from rows_as_records(_arrow_batches(path), key_field)
        else:
            with path.open("rb", buffering=0) as stream:
                yield from read_stream(stream, file_format, key_field)
    except pa.ArrowInvalid as error:
        raise CommandFailed(f"{path} is no {file_format} file: {error}") from error
    except CommandFailed as error:
        raise CommandFailed(f"{path}: {error}") from error


def read_stream(stream: ByteReader, file_format: Format, key_field: str | None) -> Iterator[pa.RecordBatch]:
    r"""Yield the lines of a byte stream, as they arrive, without their `\n`.

    NDJSON skips blank lines; `lines` keeps them as empty values. A last line needs no newline.
    """
    if file_format not in {Format.LINES, Format.NDJSON}:
        raise CommandFailed(f"{file_format} is read from files only, not from a stream")
    first_line = 1
    for text in _whole_lines(stream):
        lines = pc.split_pattern(pa.array([text], pa.binary()), "\n").flatten()
        if file_format is Format.LINES and key_field is None:
            yield _batch(lines)
        else:
            yield from _json_records(lines, key_field, first_line)
        first_line += len(lines)


def rows_as_records(batches: Iterable[pa.RecordBatch], key_field: str | None) -> Iterator[pa.RecordBatch]:
    """Yield records of columnar rows: a `value` column as it is, anything else as a JSON object per row."""
    for rows in batches:
        if not rows.num_rows:
            continue
        if key_field is not None and key_field not in rows.schema.names:
            raise CommandFailed(f"there is no column {key_field!r}; columns: {', '.join(rows.schema.names)}")
        if "value" not in rows.schema.names:
            values = pa.array(
                [json.dumps(row, default=_json_default).encode() for row in rows.to_pylist()], pa.binary()
            )
            yield _batch(values, None if key_field is None else _as_binary(rows.column(key_field)))
        elif key_field is None or key_field == "key":
            yield rows
        else:
            keyed = rows.drop_columns(["key"]) if "key" in rows.schema.names else rows
            yield keyed.append_column("key", _as_binary(rows.column(key_field))).drop_columns([key_field])


def _whole_lines(stream: ByteReader) -> Iterator[bytes]:
    """Yield pieces that end where a line ends (without that last newline), as soon as they are there."""
    pending: list[bytes] = []
    pending_bytes = 0
    while chunk := stream.read(CHUNK_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            yield b"".join([*pending, head])
            pending, pending_bytes = [], 0
        if tail:
            pending.append(tail)
            pending_bytes += len(tail)
        if pending_bytes > LINE_BYTES_MAX:
            raise CommandFailed(
                f"a line is longer than {LINE_BYTES_MAX:,} bytes; publish such values from files of Arrow"
            )
    if pending:
        yield b"".join(pending)


def _json_records(lines: AnyArray, key_field: str | None, first_line: int) -> Iterator[pa.RecordBatch]:
    blank = pc.match_substring_regex(lines, r"^\s*$")
    kept = lines.filter(pc.invert(blank))
    if not len(kept):
        return
    if key_field is None:
        yield _batch(kept)
        return
    numbers = [first_line + at for at, is_blank in enumerate(blank.to_pylist()) if not is_blank]
    keys = [_key_of(line or b"", key_field, number) for line, number in zip(kept.to_pylist(), numbers, strict=True)]
    yield _batch(kept, pa.array(keys, pa.binary()))


def _key_of(line: bytes, key_field: str, line_number: int) -> bytes | None:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise CommandFailed(f"line {line_number} is no JSON: {error}") from error
    if not isinstance(fields, dict) or key_field not in fields:
        raise CommandFailed(f"line {line_number} has no field {key_field!r}")
    key = fields[key_field]
    if key is None:
        return None
    return key.encode() if isinstance(key, str) else json.dumps(key).encode()


def _arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source) as reader:
                for at in range(reader.num_record_batches):
                    yield from _pieces(reader.get_batch(at))
        else:
            with pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    yield from _pieces(batch)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, ROWS_PER_BATCH):
        yield batch.slice(start, ROWS_PER_BATCH)


def _batch(values: AnyArray, keys: AnyArray | None = None) -> pa.RecordBatch:
    if keys is None:
        return pa.record_batch([values], names=["value"])
    return pa.record_batch([keys, values], names=["key", "value"])


def _as_binary(column: AnyArray) -> AnyArray:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _json_default(value: object) -> str:
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    raise CommandFailed(f"a value of type {type(value).__name__} has no JSON form; add a `value` column of bytes")
