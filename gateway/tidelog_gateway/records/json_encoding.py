"""Records in JSON answers: columns are sliced to the limits and encoded as one JSON array.

A batch is sliced as columns first, so that small limits do not convert a large batch repeatedly. Columns of text are
written by one template for all records (`json_array`). Other records are converted to rows of Python objects: bytes
that are not UTF-8 become base64, with the encoding in a separate member.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import UnsupportedBatchError
from tidelog.model import Record
from tidelog_proto.batch.record_batch import RecordBatch

JSON_BYTES_PER_BYTE: Final = 6
"""Maximum factor by which a byte grows in JSON: a control character is written as \\u and four digits."""
JSON_BYTES_PER_RECORD: Final = 300
JSON_MEMBERS_BYTES: Final = 100
"""Average size of the names and numbers of one record, in bytes."""

_ZERO: Final[Any] = pa.scalar(0, pa.int64())


_OFFSETS: Final[dict[Any, Any]] = {
    pa.binary(): np.int32,
    pa.string(): np.int32,
    pa.large_binary(): np.int64,
    pa.large_string(): np.int64,
}
_TEXT_COLUMNS: Final = ("key", "value", "tag")
_TEMPLATE_COLUMNS: Final = frozenset({"timestamp", *_TEXT_COLUMNS})


class JsonRecords(NamedTuple):
    """Records as a JSON array, with their number and payload in bytes."""

    data: bytes
    records: int
    payload_bytes: int


class Rows(NamedTuple):
    """The next records of a reader.

    Attributes:
        timestamp_us: timestamp of records without one.
        payload_ends: running total of the payload of the records, in bytes.
    """

    columns: pa.RecordBatch
    offsets: Sequence[int]
    timestamp_us: int
    payload_ends: list[int]


def check_untyped(batch: RecordBatch) -> None:
    """Refuse a batch whose values are rows: the functions here read the memory of columns of bytes.

    Raises:
        UnsupportedBatchError: the batch is typed.
    """
    if batch.header.typed:
        raise UnsupportedBatchError(
            "the batch is typed, so its values are rows and no bytes; read it with `row_batches`", definite=True
        )


class BatchReader:
    """Returns the records of one batch in order, some at a time.

    Args:
        batch: the batch.
        rows: the canonical columns of a typed batch, with JSON as values; None for a batch of bytes.

    Raises (in the constructor):
        UnsupportedBatchError: the batch is typed, and `rows` is None.
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """

    def __init__(self, batch: RecordBatch, rows: pa.RecordBatch | None = None) -> None:
        if rows is None:
            check_untyped(batch)
        self.next_offset = batch.base_offset
        self.end_offset = batch.end_offset
        self._columns = batch.columns() if rows is None else rows
        self._as_json = rows is not None
        self._offsets: Sequence[int] = batch.offset_list()
        self._timestamp_us = batch.header.base_timestamp_us
        self._at = 0
        self._json_ratio = 1.0
        """Ratio of the length of the last array to its estimate."""

    async def prepare(self) -> None:
        """See `row_batches.RecordReader`; the columns are decoded."""

    @cached_property
    def _ends(self) -> Any:
        return pc.cumulative_sum(payload_sizes(self._columns))

    def __len__(self) -> int:
        """Return the number of remaining records."""
        return int(self._columns.num_rows) - self._at

    @property
    def first_offset(self) -> int:
        """The offset of the next record; requires a remaining record."""
        return self._offsets[self._at]

    def json_bytes_max(self, records_max: int, bytes_max: int) -> int:
        """Return the approximate maximum length of the next records as JSON, with each byte escaped."""
        count = min(len(self), records_max)
        before = self._ends[self._at - 1].as_py() if self._at else 0
        left_bytes: int = self._ends[self._at + count - 1].as_py() - before
        first_bytes: int = self._ends[self._at].as_py() - before
        return JSON_BYTES_PER_BYTE * max(first_bytes, min(left_bytes, bytes_max)) + JSON_BYTES_PER_RECORD * count

    def peek(self, records_max: int, bytes_max: int) -> Rows:
        """Return the next records as columns, with the limits of `take`; `advance` removes them."""
        sizes = self._payload_ends(records_max)
        count = max(1, bisect_right(sizes, bytes_max))
        return Rows(*self._next(count), sizes[:count])

    def take(self, records_max: int, bytes_max: int) -> JsonRecords:
        """Return the next records as a JSON array.

        The array has at most `records_max` (>= 1) records and `bytes_max` bytes of payload, but always one record.
        """
        count, payload_bytes = len(self), None if self._at else _text_bytes(self._columns)
        if payload_bytes is None or payload_bytes > bytes_max or count > records_max:
            sizes = self._payload_ends(records_max)
            count = max(1, bisect_right(sizes, bytes_max))
            payload_bytes = sizes[count - 1]
        data = self._json(count)
        self.advance(count)
        return JsonRecords(data, count, payload_bytes)

    def take_json(self, records_max: int, bytes_max: int, json_bytes_max: int) -> JsonRecords:
        """Return the next records as a JSON array.

        The array has at most `records_max` (>= 1) records, `bytes_max` bytes of payload, and `json_bytes_max` bytes in
        all; but always one record, which may exceed both limits of bytes.
        """
        sizes = self._payload_ends(records_max)
        count = max(1, bisect_right(sizes, bytes_max))
        # Escapes and base64 expand a payload. The ratio of the last array is used as an estimate, so that few rows are
        # discarded.
        likely_bytes = json_bytes_max / self._json_ratio
        count = max(1, bisect_right(range(count), likely_bytes, key=lambda at: _json_estimate(sizes[at], at + 1)))
        data = self._json(count)
        self._json_ratio = len(data) / _json_estimate(sizes[count - 1], count)
        if len(data) > json_bytes_max and count > 1:
            rows = rows_of(*self._next(count), as_json=self._as_json)
            # Each length includes the comma or bracket.
            ends = list(accumulate(len(orjson.dumps(row)) + 1 for row in rows))
            count = max(1, bisect_right(ends, json_bytes_max - 1))
            data = orjson.dumps(rows[:count])
        self.advance(count)
        return JsonRecords(data, count, sizes[count - 1])

    def _payload_ends(self, records_max: int) -> list[int]:
        """Return the running total of the payload of the next records, in bytes."""
        assert records_max >= 1, "a limit of records must be positive"
        assert len(self) > 0, "no records remain"
        before = self._ends[self._at - 1].as_py() if self._at else 0
        return [end - before for end in self._ends.slice(self._at, records_max).to_pylist()]

    def _json(self, count: int) -> bytes:
        """Return the next records as a JSON array."""
        if self._as_json:
            return orjson.dumps(rows_of(*self._next(count), as_json=True))
        return json_array(*self._next(count))

    def _next(self, count: int) -> tuple[pa.RecordBatch, Sequence[int], int]:
        """Return the next records as arguments of `json_array` and `rows_of`."""
        offsets = self._offsets[self._at : self._at + count]
        return self._columns.slice(self._at, count), offsets, self._timestamp_us

    def advance(self, count: int) -> None:
        """Remove records that were returned."""
        last = self._offsets[self._at + count - 1]
        self._at += count
        self.next_offset = last + 1 if len(self) else self.end_offset


def first_offset_in(data: bytes) -> int:
    """Return the offset of the first record of a JSON array made by a reader."""
    return int(data[len(_FIRST) : data.index(b",")])


_FIRST: Final = b'[{"offset":'


def _json_estimate(payload_bytes: int, records: int) -> int:
    """Return about the length of records as JSON without escapes."""
    return payload_bytes + JSON_MEMBERS_BYTES * records


def payload_sizes(columns: pa.RecordBatch) -> pa.Array[Any]:
    """Return each record's payload in bytes (int64): key, value, tag, names and values of headers."""
    total: Any = pa.repeat(_ZERO, columns.num_rows)
    for name in ("key", "value", "tag"):
        if name in columns.schema.names:
            total = pc.add(total, _lengths(columns.column(name)))
    if "headers" in columns.schema.names:
        total = pc.add(total, _header_sizes(columns.column("headers")))
    return total  # type: ignore[no-any-return] # the stubs have no result type for arithmetic


def _lengths(array: Any) -> Any:
    return pc.fill_null(pc.binary_length(array).cast(pa.int64()), _ZERO)


def _header_sizes(lists: Any) -> Any:
    """Return the size of each record's headers, by differences of a running sum at the ends of its lists."""
    pairs = lists.flatten()
    flat = pc.add(_lengths(pairs.field("key")), _lengths(pairs.field("value")))
    running = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(flat)])
    counts = pc.fill_null(pc.list_value_length(lists).cast(pa.int64()), _ZERO)
    ends = pc.cumulative_sum(counts)
    return pc.subtract(running.take(ends), running.take(pc.subtract(ends, counts)))


def json_array(columns: pa.RecordBatch, offsets: Sequence[int], timestamp_us: int) -> bytes:
    """Return records as a JSON array; the same bytes as `orjson.dumps(rows_of(...))`.

    Args:
        columns: canonical columns.
        offsets: the offset of each record.
        timestamp_us: timestamp of records without one of their own.
    """
    if not _TEMPLATE_COLUMNS.issuperset(columns.schema.names):
        return orjson.dumps(rows_of(columns, offsets, timestamp_us))
    try:
        return _templated(columns, offsets, timestamp_us)
    except UnicodeDecodeError:
        return orjson.dumps(rows_of(columns, offsets, timestamp_us))


def _templated(columns: pa.RecordBatch, offsets: Sequence[int], timestamp_us: int) -> bytes:
    """Return records as a JSON array, by a template that is repeated for each.

    Raises:
        UnicodeDecodeError: a key or a value is not UTF-8.
    """
    names = columns.schema.names
    parts: list[Sequence[Any]] = [offsets]
    timestamp = b"%d" % (timestamp_us // 1000)
    if "timestamp" in names:
        stamps: Any = columns.column("timestamp")
        parts.append([stamp_us // 1000 for stamp_us in stamps.view(pa.int64()).to_pylist()])
        timestamp = b"%d"
    tokens = {"key": b"null", "value": b"null", "tag": b""}
    for name in _TEXT_COLUMNS:
        if name in names:
            tokens[name], texts = _json_texts(columns.column(name))
            parts.append(texts)
    if "tag" in names:
        if columns.column("tag").null_count:
            parts[-1] = [b"" if text == b"null" else b',"tag":' + text for text in parts[-1]]
        else:
            tokens["tag"] = b',"tag":' + tokens["tag"]
    row = b'{"offset":%%d,"timestamp_ms":%b,"key":%b,"value":%b,"value_encoding":"utf8"%b}' % (
        timestamp,
        tokens["key"],
        tokens["value"],
        tokens["tag"],
    )
    filling: list[Any] = [None] * (len(parts) * len(offsets))
    for number, part in enumerate(parts):
        filling[number :: len(parts)] = part
    return b"[%b]" % (b",".join([row] * len(offsets)) % tuple(filling))


def _json_texts(column: Any) -> tuple[bytes, list[bytes]]:
    """Return a column of bytes or text as JSON strings and nulls, and the placeholder of one of them in a template.

    Raises:
        UnicodeDecodeError: not all of the column is UTF-8.
    """
    texts: list[bytes | None] = (column if column.type == pa.binary() else column.cast(pa.binary())).to_pylist()
    if not column.null_count and is_literal(b"".join(cast("list[bytes]", texts))):
        return b'"%b"', cast("list[bytes]", texts)
    return b"%b", [b"null" if text is None else orjson.dumps(text.decode()) for text in texts]


def is_literal(text: bytes) -> bool:
    """Return whether JSON needs no escape for a text: ASCII without quotes, backslashes and control characters."""
    return text.isascii() and len(orjson.dumps(text.decode())) == len(text) + 2  # the two quotes around the text


def rows_of(
    columns: pa.RecordBatch, offsets: Sequence[int], timestamp_us: int, *, as_json: bool = False
) -> list[dict[str, Any]]:
    """Convert canonical columns to rows for JSON with their offsets.

    Args:
        columns: canonical columns.
        offsets: the offset of each record.
        timestamp_us: timestamp of records without one of their own.
        as_json: whether values are JSON, which is copied into the rows.
    """
    names = set(columns.schema.names)
    timestamp_ms = timestamp_us // 1000
    rows: list[dict[str, Any]]
    texts = None
    if not as_json:
        texts = _texts(columns.column("value")) if "value" in names else [None] * columns.num_rows
    if as_json:
        rows = [
            _json_row(offset, timestamp_us, value)
            for offset, value in zip(offsets, columns.column("value").to_pylist(), strict=True)
        ]
    elif texts is not None:
        rows = [
            {"offset": offset, "timestamp_ms": timestamp_ms, "key": None, "value": text, "value_encoding": "utf8"}
            for offset, text in zip(offsets, texts, strict=True)
        ]
    else:
        values = columns.column("value").to_pylist()
        rows = [_row(offset, timestamp_us, value) for offset, value in zip(offsets, values, strict=True)]
    if "timestamp" in names:
        stamps: Any = columns.column("timestamp")
        for row, stamp_us in zip(rows, stamps.view(pa.int64()).to_pylist(), strict=True):
            row["timestamp_ms"] = stamp_us // 1000
    if "key" in names:
        for row, key in zip(rows, columns.column("key").to_pylist(), strict=True):
            text, encoding = _text(key)
            row["key"] = text
            if encoding != "utf8":
                row["key_encoding"] = encoding
    if "tag" in names:
        for row, tag in zip(rows, columns.column("tag").to_pylist(), strict=True):
            if tag is not None:
                row["tag"] = tag
    if "headers" in names:
        _add_headers(rows, columns.column("headers"))
    return rows


def row_of(record: Record, *, as_json: bool = False) -> dict[str, Any]:
    """Convert a single record to a row, like `rows_of`.

    Args:
        as_json: whether the value is JSON.
    """
    make = _json_row if as_json else _row
    row = make(record.offset, record.timestamp_us, record.value)
    row["key"], encoding = _text(record.key)
    if encoding != "utf8":
        row["key_encoding"] = encoding
    if record.tag is not None:
        row["tag"] = record.tag
    if record.headers:
        row["headers"] = [_header(name, value) for name, value in record.headers]
    return row


def _row(offset: int, timestamp_us: int, value: bytes | None) -> dict[str, Any]:
    text, encoding = _text(value)
    return {
        "offset": offset,
        "timestamp_ms": timestamp_us // 1000,
        "key": None,
        "value": text,
        "value_encoding": encoding,
    }


def _json_row(offset: int, timestamp_us: int, value: bytes | None) -> dict[str, Any]:
    """Return the row of a record of a typed topic."""
    row = _row(offset, timestamp_us, None)
    if value is not None:
        row |= {"value": orjson.Fragment(value), "value_encoding": "json"}
    return row


def _add_headers(rows: list[dict[str, Any]], lists: Any) -> None:
    pairs = lists.flatten()
    flat = [
        _header(name, value)
        for name, value in zip(pairs.field("key").to_pylist(), pairs.field("value").to_pylist(), strict=True)
    ]
    at = 0
    for row, count in zip(rows, pc.list_value_length(lists).to_pylist(), strict=True):
        if count:
            row["headers"] = flat[at : at + count]
            at += count


def _header(name: str, value: bytes | None) -> list[str | None]:
    text, encoding = _text(value)
    return [name, text] if encoding == "utf8" else [name, text, encoding]


def _texts(column: Any) -> list[str | None] | None:
    """Return a column of bytes as text; None if a value is not UTF-8."""
    try:
        return [None if data is None else data.decode() for data in column.to_pylist()]
    except UnicodeDecodeError:
        return None


def _text_bytes(columns: pa.RecordBatch) -> int | None:
    """Return the payload bytes of all records, from the offsets of the columns; None for layouts without offsets."""
    total_bytes = 0
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        if name == "timestamp":
            continue
        buffers: Any = column.buffers()
        numbers = _OFFSETS.get(column.type)
        if numbers is None:
            return None
        offsets = np.frombuffer(buffers[1], numbers)
        total_bytes += int(offsets[column.offset + len(column)]) - int(offsets[column.offset])
    return total_bytes


def _text(data: bytes | None) -> tuple[str | None, str]:
    """Return bytes as text and the name of its encoding."""
    if data is None:
        return None, "utf8"
    try:
        return data.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode("ascii"), "base64"
