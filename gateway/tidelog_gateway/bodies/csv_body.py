"""Records as CSV: a header row that names the columns, and a row for each record.

pyarrow parses the rows into columns, in parts that take a few milliseconds. An unquoted empty field is a missing
value, a quoted one is empty text. CSV has no other way to express the difference and many writers ignore it, so a
missing value is an error unless the request defines its meaning (`empty_value`).
"""

from __future__ import annotations

import csv
import difflib
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv

from tidelog_gateway.bodies.csv_rows import row_ends, row_fault
from tidelog_gateway.problems import invalid
from tidelog_gateway.records.json_decoding import HEADERS_PER_RECORD_MAX, HEADERS_PER_REQUEST_MAX, Records
from tidelog_proto.limits import KIB, PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX
from tidelog_proto.text.json_text import BYTE_ORDER_MARK

EmptyValue = Literal["error", "empty", "tombstone"]

HEADER_PREFIX: Final = "header:"
_COLUMNS: Final = ("key", "value", "tag", "partition", "timestamp_ms")
_HEADER_ROW_BYTES_MAX: Final = 64 * KIB
_PART_BYTES: Final = 256 * KIB
PART_FIELDS: Final = 5_000
_TEXT: Final = pa.string()
_ZERO: Final[Any] = pa.scalar(0, pa.int32())
_DIGITS: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_NUMBERS_MAX: Final = {"partition": PARTITIONS_MAX - 1, "timestamp_ms": TIMESTAMP_MS_MAX}
_PARSER_ROW: Final = re.compile(r"Row #(\d+): ")


async def csv_records(
    body: bytes, *, records_max: int, now_us: int, empty_value: EmptyValue, pace: Callable[[], Awaitable[None]]
) -> Records:
    """Read a CSV body of at most `records_max` rows besides its header row.

    Raises:
        Problem: 422, which names the row if a single row is invalid; also those that `pace` raises.
    """
    ends = await row_ends(body, rows_max=records_max, pace=pace)
    if len(ends) < 2:
        detail = "a CSV body must have a row with the names of its columns, and a row for each record"
        raise invalid([{"pointer": "", "detail": detail}])
    names = _names(body[: ends[0]])
    joined = _Lists(names, now_us, empty_value)
    part_rows = max(1, PART_FIELDS // len(names))
    first = 1
    while first < len(ends):
        start = ends[first - 1]
        last = max(first + 1, min(first + part_rows, bisect_right(ends, start + _PART_BYTES)))
        await pace()
        joined.add(body[start : ends[last - 1]], first + 1, last - first)
        first = last
    return joined.records()


def _names(row: bytes) -> list[str]:
    """Return the names of the columns.

    Raises:
        Problem: 422.
    """
    if len(row) > _HEADER_ROW_BYTES_MAX:
        raise row_fault(1, f"the names of the columns have more than {_HEADER_ROW_BYTES_MAX} bytes; shorten them")
    try:
        text = row.removeprefix(BYTE_ORDER_MARK).decode()
        (names,) = csv.reader([text.rstrip("\r\n")] if text.count("\n") < 2 else text.splitlines(keepends=True))
    except (UnicodeDecodeError, ValueError, csv.Error) as error:
        detail = "the header row must name the columns in UTF-8, in one row of CSV, such as: key,value"
        raise row_fault(1, detail) from error
    faults = [fault for number, name in enumerate(names) if (fault := _name_fault(name, names[:number]))]
    if faults:
        raise row_fault(1, faults[0])
    if "value" not in names:
        raise row_fault(1, "the header row has no column named value; add it")
    headers = sum(name.startswith(HEADER_PREFIX) for name in names)
    if headers > HEADERS_PER_RECORD_MAX:
        raise row_fault(
            1, f"a record may have at most {HEADERS_PER_RECORD_MAX} headers, got {headers}; remove header columns"
        )
    return names


def _name_fault(name: str, before: list[str]) -> str | None:
    if name.startswith(HEADER_PREFIX):
        fault = f"a column of headers must be {HEADER_PREFIX}NAME, got {name!r}"
        return None if len(name) > len(HEADER_PREFIX) else fault
    if name in _COLUMNS:
        return f"column {name} is given twice; give it once" if name in before else None
    near = difflib.get_close_matches(name, [*_COLUMNS, HEADER_PREFIX + "NAME"], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"column {name!r} is unknown: {hint}the columns are {', '.join(_COLUMNS)} and {HEADER_PREFIX}NAME"


class _Lists:
    """Collects the records of a body in lists, while its rows are parsed in parts."""

    def __init__(self, names: list[str], now_us: int, empty_value: EmptyValue) -> None:
        self._names = names
        self._now_us = now_us
        self._empty_value = empty_value
        self._at = {name: number for number, name in enumerate(names) if name in _COLUMNS}
        self._headers = [number for number, name in enumerate(names) if name.startswith(HEADER_PREFIX)]
        self._records = Records([])
        self._header_count = 0

    def records(self) -> Records:
        """Return the records; their partitions are None if no row has a partition."""
        records = self._records
        if records.partitions is not None and not any(number is not None for number in records.partitions):
            records.partitions = None
        return records

    def add(self, rows: bytes, first: int, count: int) -> None:
        """Parse and add consecutive rows.

        Args:
            rows: text of the rows.
            first: number of the first row; the header row is 1.
            count: number of rows that `row_ends` has found in the text.

        Raises:
            Problem: 422.
        """
        table = _parsed(rows, len(self._names), first)
        if table.num_rows != count:
            # Pyarrow and `row_ends` must find the same rows; otherwise values would get into wrong records.
            detail = (
                f"the CSV parser found {table.num_rows} rows from this one on, but {count} line ends outside of "
                "quotes; check the quotes and line ends"
            )
            raise row_fault(first, detail)
        columns = {name: table.column(number).combine_chunks() for name, number in self._at.items()}
        records = self._records
        records.values += self._values(columns["value"], first)
        if "key" in columns:
            records.keys = (records.keys or []) + columns["key"].cast(pa.binary()).to_pylist()
        if "tag" in columns:
            _check_lengths(columns["tag"], first)
            records.tags = (records.tags or []) + columns["tag"].to_pylist()
        if "partition" in columns:
            records.partitions = (records.partitions or []) + _numbers(columns["partition"], "partition", first)
        if "timestamp_ms" in columns:
            stamps = _numbers(columns["timestamp_ms"], "timestamp_ms", first)
            records.timestamps_us = (records.timestamps_us or []) + [
                self._now_us if stamp is None else stamp * 1000 for stamp in stamps
            ]
        if self._headers:
            records.headers = (records.headers or []) + self._header_lists(table)

    def _values(self, column: Any, first: int) -> list[bytes | None]:
        if column.null_count and self._empty_value != "tombstone":
            if self._empty_value == "error":
                row = first + int(pc.index(column.is_null(), pa.scalar(value=True)).as_py())
                raise row_fault(
                    row,
                    'the value is missing; write "" for an empty one, or choose the meaning of unquoted empty fields '
                    "with the query parameter empty_value=empty or empty_value=tombstone",
                )
            column = column.fill_null("")
        values: list[bytes | None] = column.cast(pa.binary()).to_pylist()
        return values

    def _header_lists(self, table: pa.Table) -> list[list[tuple[str, bytes | None]]]:
        lists: list[list[tuple[str, bytes | None]]] = [[] for _ in range(table.num_rows)]
        for number in self._headers:
            name = self._names[number].removeprefix(HEADER_PREFIX)
            values: list[bytes | None] = table.column(number).cast(pa.binary()).to_pylist()
            for headers, value in zip(lists, values, strict=True):
                if value is not None:
                    headers.append((name, value))
        self._header_count += sum(map(len, lists))
        if self._header_count > HEADERS_PER_REQUEST_MAX:
            detail = f"the records have more than {HEADERS_PER_REQUEST_MAX} headers; send fewer rows per request"
            raise invalid([{"pointer": "", "detail": detail}])
        return lists


def _parsed(rows: bytes, column_count: int, first: int) -> pa.Table:
    names = [str(number) for number in range(column_count)]
    if rows.startswith(BYTE_ORDER_MARK):
        # Pyarrow skips a byte order mark at the beginning of its input, but here it belongs to a field.
        rows = BYTE_ORDER_MARK + rows
    try:
        return arrow_csv.read_csv(
            cast("Any", pa.BufferReader(rows)),
            read_options=arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(rows) + 1),
            parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, _TEXT),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        match = _PARSER_ROW.search(str(error))
        row = first + int(match[1]) - 1 if match else first
        raise row_fault(row, _reworded(str(error))) from error


def _reworded(text: str) -> str:
    """Return pyarrow's error without the text of the row, which may be long."""
    counts = re.search(r"Expected (\d+) columns, got (\d+)", text)
    if counts:
        return f"the header row has {counts[1]} columns, but this row has {counts[2]}"
    return "the row is not UTF-8" if "UTF8" in text else "the row cannot be read as CSV; see RFC 4180"


def _numbers(column: Any, name: str, first: int) -> list[int | None]:
    """Return a column as whole numbers, with None for a missing value.

    Raises:
        Problem: 422.
    """
    numbers: list[int | None] = []
    for row, text in enumerate(column.to_pylist(), first):
        if text is None:
            numbers.append(None)
            continue
        number = int(text) if _DIGITS.fullmatch(text) else None
        if number is None or number > _NUMBERS_MAX[name]:
            raise row_fault(row, f"{name} must be a whole number from 0 to {_NUMBERS_MAX[name]}, got {text[:40]!r}")
        numbers.append(number)
    return numbers


def _check_lengths(tags: Any, first: int) -> None:
    lengths: Any = pc.fill_null(pc.binary_length(tags), _ZERO)
    longest: int = pc.max(lengths).as_py()
    if longest > TAG_BYTES_MAX:
        row = first + int(pc.index(lengths, longest).as_py())
        raise row_fault(row, f"a tag has at most {TAG_BYTES_MAX} bytes, got {longest}")
