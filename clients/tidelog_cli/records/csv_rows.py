"""CSV as Arrow record batches: a JSON object for each row, with the types that the command line gives its columns.

A column is text unless `--type` sets another type: inferred types would turn `007` into 7 and `1.10` into 1.1. Numbers
keep every digit, because their text is copied into the JSON. An unquoted empty field is null, `""` is empty text. A
file with a column `value` has one record in each row instead: `value`, `key` and `tag`, as text. Rejected: Arrow's
inference of types, which looks at the first block only.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from io import RawIOBase
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import pyarrow as pa
from pyarrow import csv as arrow_csv

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_proto.text.json_text import BYTE_ORDER_MARK

BLOCK_BYTES: Final = 1 << 20
"""Maximum bytes of text that are parsed at once, and of one row."""
HEADER_BYTES_MAX: Final = 64 << 10
_RECORD_COLUMNS: Final = frozenset({"value", "key", "tag"})
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")

AnyArray: TypeAlias = "pa.Array[Any]"


class ColumnType(StrEnum):
    """The JSON type of a column."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


class ByteReader(Protocol):
    """A raw byte stream: a read returns available bytes, possibly fewer than requested."""

    def read(self, size: int, /) -> bytes | None:
        """Return at most `size` bytes; empty or None at the end."""


def types_of(arguments: Sequence[str]) -> dict[str, ColumnType]:
    """Return column -> type for arguments such as `delay=integer`.

    Raises:
        CommandFailed: an argument has another form, an unknown type, or repeats a column.
    """
    types: dict[str, ColumnType] = {}
    for text in arguments:
        name, equals, kind = text.rpartition("=")
        if not equals or not name or kind not in {*ColumnType}:
            kinds = ", ".join(ColumnType)
            raise CommandFailed(f"--type must be COLUMN=TYPE with one of the types {kinds}, got {text!r}", EXIT_USAGE)
        if name in types:
            raise CommandFailed(f"--type gives column {name!r} twice; give it once", EXIT_USAGE)
        types[name] = ColumnType(kind)
    return types


class Rows(NamedTuple):
    """Rows of a CSV stream.

    Attributes:
        fields: each column as text.
        records: the rows as records: `value`, and `key` and `tag` if the file has these columns.
    """

    fields: pa.RecordBatch
    records: dict[str, AnyArray]


def delimiter_of(text: str) -> str:
    """Return the character of an argument such as `;`, or of the name `tab`.

    Raises:
        CommandFailed: the argument is not one ASCII character that can separate fields.
    """
    delimiter = {"tab": "\t", "\\t": "\t"}.get(text, text)
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise CommandFailed(
            "--delimiter must be tab, or one ASCII character other than a double quote, CR, LF or NUL, such as ';'; "
            f"got {text!r}",
            EXIT_USAGE,
        )
    return delimiter


def rows_of(
    stream: ByteReader, types: Mapping[str, ColumnType], skip: int = 0, delimiter: str | None = None
) -> Iterator[Rows]:
    """Yield the rows of a CSV stream, some at a time, without the first `skip` rows after the header.

    Args:
        stream: the bytes of the file.
        types: column -> type; other columns are text.
        skip: number of rows after the header to skip.
        delimiter: separates the fields. None: a comma, but a header that another character seems to separate is
            refused.

    Raises:
        CommandFailed: the stream is not CSV, or a field is not of its column's type; the message has the row, where the
            header is 1. The rows before a field of another type have been yielded.
    """
    reader = _Blocks(stream)
    names = _names(reader, delimiter)
    if missing := [name for name in types if name not in names]:
        raise CommandFailed(
            f"--type names column {missing[0]!r}, which the file does not have; its columns: {', '.join(names)}"
        )
    if "value" in names and (other := [name for name in names if name not in _RECORD_COLUMNS] or list(types)):
        remedy = (
            f"remove column {other[0]!r}" if other[0] not in _RECORD_COLUMNS else f"omit --type for column {other[0]!r}"
        )
        raise CommandFailed(
            "CSV with a column `value` may have only the columns value, key and tag, and takes no --type: "
            f"{remedy}, or rename column `value` to publish each row as a JSON object"
        )
    row = 2
    for parsed in _parsed(reader, names, delimiter or ","):
        skipped = min(skip, parsed.num_rows)
        skip, row, batch = skip - skipped, row + skipped, parsed.slice(skipped)
        if not batch.num_rows:
            continue
        if "value" in names:
            records = {name: batch.column(name) for name in names}
            yield Rows(
                batch, {name: column if name == "tag" else column.cast(pa.binary()) for name, column in records.items()}
            )
        else:
            valid, fault = _checked(batch, names, types, row)
            if valid.num_rows:
                yield Rows(valid, {"value": pa.array(_objects(valid, names, types), pa.binary())})
            if fault is not None:
                raise fault
        row += batch.num_rows
    if skip:
        raise CommandFailed(f"--skip-rows {row - 2 + skip}: the file has only {row - 2} rows after the header")


def _parsed(reader: _Blocks, names: list[str], delimiter: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows after the header, all columns as text."""
    if reader.is_at_end():
        return
    read = arrow_csv.ReadOptions(column_names=names, block_size=BLOCK_BYTES, use_threads=False)
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=len(names) > 1)
    convert = arrow_csv.ConvertOptions(
        column_types={name: pa.string() for name in names},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        with arrow_csv.open_csv(cast("Any", reader), read, parse, convert) as batches:
            yield from batches
    except pa.ArrowInvalid as error:
        fault = re.sub(r"Row #(\d+)", lambda match: f"row {int(match[1]) + 1}", str(error))
        if "straddling" in fault:
            raise CommandFailed(
                f"cannot parse CSV: a row has more than {BLOCK_BYTES:,} bytes, or a quote is not closed; close the "
                "quote or split the row"
            ) from error
        raise CommandFailed(f"cannot parse CSV: {fault}; correct this row, or check --delimiter") from error


def _checked(
    batch: pa.RecordBatch, names: Sequence[str], types: Mapping[str, ColumnType], first_row: int
) -> tuple[pa.RecordBatch, CommandFailed | None]:
    """Return the rows before the first field that is not of its column's type, and the error for that field."""
    valid, fault = batch, None
    for name in names:
        kind = types.get(name, ColumnType.TEXT)
        if kind is ColumnType.TEXT:
            continue
        for at, field in enumerate(valid.column(name).to_pylist()):
            if field is not None and not _is_of(field, kind):
                valid = batch.slice(0, at)
                fault = CommandFailed(
                    f"row {first_row + at} (the header is row 1), column {name!r}: {field!r} is not of type {kind}; "
                    f"correct it, or give --type {name}=text"
                )
                break
    return valid, fault


def _is_of(field: str, kind: ColumnType) -> bool:
    if kind is ColumnType.BOOLEAN:
        return field in {"true", "false"}
    return (_INTEGER if kind is ColumnType.INTEGER else _NUMBER).fullmatch(field) is not None


def _objects(batch: pa.RecordBatch, names: Sequence[str], types: Mapping[str, ColumnType]) -> list[bytes]:
    """Return a JSON object for each row of checked fields."""
    columns = []
    for name in names:
        kind = types.get(name, ColumnType.TEXT)
        member = f"{json.dumps(name, ensure_ascii=False)}:"
        fields: list[str | None] = batch.column(name).to_pylist()
        columns.append([member + _json(field, kind) for field in fields])
    return [f"{{{','.join(row)}}}".encode() for row in zip(*columns, strict=True)]


def _json(field: str | None, kind: ColumnType) -> str:
    if field is None:
        return "null"
    return json.dumps(field, ensure_ascii=False) if kind is ColumnType.TEXT else field


def _names(reader: _Blocks, delimiter: str | None) -> list[str]:
    """Take the header row from a stream and return the names of the columns."""
    row = reader.first_row()
    try:
        (names,) = csv.reader([row.decode().rstrip("\r\n")], strict=True, delimiter=delimiter or ",")
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        raise CommandFailed(
            "row 1 is not a CSV header in UTF-8; the first row must have the names of the columns"
        ) from error
    if delimiter is None and len(names) == 1 and (other := next((one for one in ";\t|" if one in names[0]), None)):
        shown = "tab" if other == "\t" else f"'{other}'"
        raise CommandFailed(
            f"row 1 is one column named {names[0]!r}; if {shown} separates the columns give --delimiter {shown}, "
            "otherwise --delimiter ','"
        )
    if "" in names or len(set(names)) < len(names):
        fault = next(name for at, name in enumerate(names) if not name or name in names[:at])
        raise CommandFailed(
            f"row 1 has {'an empty name' if not fault else f'the name {fault!r} twice'}; give each column its own name"
        )
    return names


class _Blocks(RawIOBase):
    """A stream of which the header row is read first; then each read returns the full size until the end."""

    def __init__(self, stream: ByteReader) -> None:
        super().__init__()
        self._stream = stream
        self._ahead = b""

    def readable(self) -> bool:
        return True

    def first_row(self) -> bytes:
        """Take the first row, without a byte order mark.

        Raises:
            CommandFailed: the row is longer than `HEADER_BYTES_MAX`, or the input is empty.
        """
        head = b""
        while (end := _row_end(head)) < 0 and len(head) <= HEADER_BYTES_MAX and (more := self._stream.read(8192)):
            head += more
        if end < 0 and len(head) > HEADER_BYTES_MAX:
            raise CommandFailed(
                f"row 1 has more than {HEADER_BYTES_MAX:,} bytes; the first row of CSV must be the names of the columns"
            )
        row, self._ahead = (head, b"") if end < 0 else (head[:end], head[end:])
        row = row.removeprefix(BYTE_ORDER_MARK)
        if not row.strip():
            raise CommandFailed("row 1 is missing: CSV begins with a row that names the columns")
        return row

    def is_at_end(self) -> bool:
        """Return whether the stream has no more bytes."""
        if not self._ahead:
            self._ahead = self._stream.read(BLOCK_BYTES) or b""
        return not self._ahead

    def read(self, size: int = -1, /) -> bytes:
        chunks, size_wanted = [self._ahead], size if size >= 0 else BLOCK_BYTES
        read_bytes = len(self._ahead)
        while read_bytes < size_wanted and (more := self._stream.read(size_wanted - read_bytes)):
            chunks.append(more)
            read_bytes += len(more)
        whole = b"".join(chunks)
        self._ahead = whole[size_wanted:]
        return whole[:size_wanted]


def _row_end(text: bytes) -> int:
    """Return the index after the first row's line end; -1 if the text has no complete row."""
    at = -1
    while (at := text.find(b"\n", at + 1)) >= 0:
        if text.count(b'"', 0, at) % 2 == 0:
            return at + 1
    return -1
