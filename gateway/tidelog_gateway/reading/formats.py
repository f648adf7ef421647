"""Formats of a response with records: JSON, NDJSON, CSV and Arrow, each encoded from columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from tidelog_gateway.reading.json_rows import header_texts, json_rows, milliseconds
from tidelog_gateway.reading.text_columns import SLICE_BYTES, SLICE_RECORDS, bytes_of, joined, text_of
from tidelog_gateway.reading.values import ValueEncoding, texts_of
from tidelog_gateway.requests.content_negotiation import ARROW, CSV, JSON, NDJSON
from tidelog_proto.batch.columns import with_tight_headers
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA
from tidelog_proto.limits import BATCH_RECORDS_MAX, MIB

CSV_COLUMNS: Final = (
    "partition",
    "offset",
    "timestamp_ms",
    "key",
    "key_encoding",
    "value",
    "value_encoding",
    "tag",
    "headers",
)
_CSV_OPTIONS: Final = csv.WriteOptions(include_header=False, quoting_style="needed")


class RecordFormat(Protocol):
    """Encodes the records of one response body, called by `RecordsBody`.

    `begin` is called once, then `rows` for each slice, possibly never, then `end` once.

    Attributes:
        media_type: media type of the body.
        slice_bytes, slice_records: maximum payload in bytes and maximum number of the records of one slice; a larger
            record is a slice of its own.
    """

    media_type: str
    slice_bytes: int
    slice_records: int

    def begin(self) -> bytes:
        """Return the part before the records."""
        ...

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """Encode one slice; `columns` are those of `RECORDS_SCHEMA`, with at least one record."""
        ...

    def end(self, members: Mapping[str, Any]) -> bytes:
        """Return the part after the records; `members` has the position of the next read."""
        ...


class JsonFormat:
    """A JSON object whose first member is the list of records."""

    media_type = JSON
    slice_bytes = SLICE_BYTES
    slice_records = SLICE_RECORDS

    def __init__(self, encoding: ValueEncoding | None, *, numbered: bool) -> None:
        self._encoding: ValueEncoding | None = encoding
        self._numbered = numbered
        self._divider = b""

    def begin(self) -> bytes:
        """See `RecordFormat`."""
        return b'{"records":['

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """See `RecordFormat`."""
        divider, self._divider = self._divider, b","
        rows = json_rows(columns, self._encoding, numbered=self._numbered, one_line=False)
        return divider + bytes(bytes_of(joined(rows, ",")))[:-1]

    def end(self, members: Mapping[str, Any]) -> bytes:
        """See `RecordFormat`."""
        return b"]," + orjson.dumps(members)[1:]


class NdjsonFormat:
    """One JSON object per line and record."""

    media_type = NDJSON
    slice_bytes = SLICE_BYTES
    slice_records = SLICE_RECORDS

    def __init__(self, encoding: ValueEncoding | None) -> None:
        self._encoding: ValueEncoding | None = encoding

    def begin(self) -> bytes:
        """See `RecordFormat`."""
        return b""

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """See `RecordFormat`."""
        rows = json_rows(columns, self._encoding, numbered=True, one_line=True)
        return bytes(bytes_of(joined(rows, "\n")))

    def end(self, members: Mapping[str, Any]) -> bytes:
        """See `RecordFormat`."""
        del members
        return b""


class CsvFormat:
    """A header row, then one row per record (RFC 4180). Null is an empty field, empty text a pair of quotes."""

    media_type = CSV
    slice_bytes = SLICE_BYTES
    slice_records = SLICE_RECORDS

    def __init__(self, encoding: ValueEncoding | None) -> None:
        self._encoding: ValueEncoding | None = encoding

    def begin(self) -> bytes:
        """See `RecordFormat`."""
        return ",".join(CSV_COLUMNS).encode() + b"\n"

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """See `RecordFormat`."""
        key, value = columns.column("key"), columns.column("value")
        keys, values = texts_of(key), texts_of(value, self._encoding)
        headers = header_texts(columns.column("headers"))
        arrays = [
            columns.column("partition"),
            columns.column("offset"),
            milliseconds(columns),
            keys.texts,
            _names(key, keys.in_base64, "utf8"),
            values.texts,
            _names(value, values.in_base64, "json" if self._encoding == "json" else "utf8"),
            columns.column("tag"),
            pa.nulls(len(key), pa.string()) if headers is None else headers,
        ]
        sink = pa.BufferOutputStream()
        csv.write_csv(pa.RecordBatch.from_arrays(arrays, names=list(CSV_COLUMNS)), sink, _CSV_OPTIONS)
        return sink.getvalue().to_pybytes()

    def end(self, members: Mapping[str, Any]) -> bytes:
        """See `RecordFormat`."""
        del members
        return b""


def _names(column: Any, in_base64: Any, other: str) -> Any:
    """Return the name of each row's encoding; null for null."""
    names: Any = other if in_base64 is None else pc.if_else(pa.array(in_base64), "base64", other)
    return pc.if_else(pc.is_valid(column), names, pa.scalar(None, pa.string()))


class ArrowFormat:
    """An Arrow IPC stream with the columns of `RECORDS_SCHEMA`; values are bytes, or text if an encoding is given."""

    media_type = ARROW

    def __init__(self, encoding: ValueEncoding | None) -> None:
        assert encoding != "base64", "the caller refuses base64 for Arrow"
        self.slice_bytes = MIB if encoding is None else SLICE_BYTES
        self.slice_records = BATCH_RECORDS_MAX if encoding is None else SLICE_RECORDS
        self._is_text = encoding is not None
        self._value_at = RECORDS_SCHEMA.get_field_index("value")
        schema = RECORDS_SCHEMA
        if self._is_text:
            schema = schema.set(self._value_at, pa.field("value", pa.string()))
        self._schema = schema

    def begin(self) -> bytes:
        """See `RecordFormat`."""
        return self._schema.serialize().to_pybytes()

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """See `RecordFormat`."""
        columns = with_tight_headers(columns)
        if self._is_text:
            arrays = list(columns.columns)
            arrays[self._value_at] = text_of(arrays[self._value_at])
            columns = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return columns.serialize().to_pybytes()

    def end(self, members: Mapping[str, Any]) -> bytes:
        """See `RecordFormat`."""
        del members
        return _ARROW_END


class RowsFormat:
    """An Arrow IPC stream with the fields of a typed topic and columns of the records, without tombstones."""

    media_type = ARROW
    slice_bytes = MIB
    slice_records = BATCH_RECORDS_MAX

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def begin(self) -> bytes:
        """See `RecordFormat`."""
        return self._schema.serialize().to_pybytes()

    def rows(self, columns: pa.RecordBatch) -> bytes:
        """Encode one slice; `columns` are those of the schema."""
        # Arrow's writer keeps data outside of a slice if the slice has only empty lists.
        arrays = [exact_values(each) if _has_lists(each.type) else each for each in columns.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=columns.schema).serialize().to_pybytes()

    def end(self, members: Mapping[str, Any]) -> bytes:
        """See `RecordFormat`."""
        del members
        return _ARROW_END


def _has_lists(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_lists(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_list(kind))


_ARROW_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""End of an Arrow IPC stream: the continuation marker and a length of zero."""


def format_for(media_type: str, encoding: ValueEncoding | None, *, numbered: bool) -> RecordFormat:
    """Return the format for a media type.

    Args:
        media_type: one of `RECORD_TYPES`.
        encoding: encoding of all values; None: chosen for each value.
        numbered: whether JSON records have the member `partition`, as those of a whole topic do.
    """
    if media_type == JSON:
        return JsonFormat(encoding, numbered=numbered)
    if media_type == NDJSON:
        return NdjsonFormat(encoding)
    if media_type == CSV:
        return CsvFormat(encoding)
    return ArrowFormat(encoding)
