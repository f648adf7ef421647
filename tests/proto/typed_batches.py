"""Shared helpers of the tests of typed batches: samples, and hypothesis strategies for rows of any schema."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from hypothesis import strategies as st
from tests.proto.batches import NOW_US

from tidelog_proto.batch.header import BatchHeader, Codec, stamp_owner, unpack_header
from tidelog_proto.batch.key_bytes import DATE_DAYS_MAX, DATE_DAYS_MIN, STAMP_US_MAX, STAMP_US_MIN
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.row_layout import Layouts, RowLayout, row_layout
from tidelog_proto.batch.typed_rows import DELETED, stored_columns
from tidelog_proto.limits import HEADER_BYTES
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import DECIMAL_PRECISION_MAX, DataType, Kind
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

_EXTREMES: dict[Kind, tuple[Any, ...]] = {
    Kind.FLOAT32: (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5),
    Kind.FLOAT64: (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e300, 5e-324),
}
_STAMPS = st.integers(STAMP_US_MIN, STAMP_US_MAX) | st.sampled_from([STAMP_US_MIN, STAMP_US_MAX, 0, -1])


def values_of(field: Field) -> st.SearchStrategy[Any]:
    """Make values of a field in the form in which `pa.array` takes them, with extremes; null if it is not required."""
    if not field.children:
        return _leaves(field.type) if field.required else _leaves_or_none(field.type)
    if field.type.kind is Kind.LIST:
        some: st.SearchStrategy[Any] = st.lists(values_of(field.children[0]), max_size=3)
    else:
        some = st.fixed_dictionaries({child.name: values_of(child) for child in field.children})
    return some if field.required else st.none() | some


@cache
def _leaves_or_none(data_type: DataType) -> st.SearchStrategy[Any]:
    return st.none() | _leaves(data_type)


@cache
def _leaves(data_type: DataType) -> st.SearchStrategy[Any]:
    """Make values of a type without children. Hypothesis examines each new strategy, so there is one of each type."""
    kind, precision, scale = data_type
    if kind is Kind.BOOL:
        return st.booleans()
    if kind in _EXTREMES:
        return st.sampled_from(_EXTREMES[kind]) | st.floats(width=32 if kind is Kind.FLOAT32 else 64)
    if kind is Kind.DECIMAL128:
        most = 10**precision - 1
        numbers = st.integers(-most, most) | st.sampled_from([most, -most, 0])
        return numbers.map(lambda number: Decimal(number).scaleb(-scale, _CONTEXT))
    if kind is Kind.STRING:
        return st.text(max_size=8)
    if kind is Kind.BINARY:
        return st.binary(max_size=8)
    if kind is Kind.DATE32:
        return st.integers(DATE_DAYS_MIN, DATE_DAYS_MAX) | st.sampled_from([DATE_DAYS_MIN, DATE_DAYS_MAX])
    if kind in {Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
        return _STAMPS
    bits = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}[kind]
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.integers(least, most) | st.sampled_from([least, most, 0])


_CONTEXT = Context(prec=DECIMAL_PRECISION_MAX)


@st.composite
def rows_of_schema(draw: st.DrawFn, schema: Schema, max_size: int = 6, *, tombstones: bool = True) -> pa.RecordBatch:
    """Make rows of a schema, as `stored_columns` takes them, some of them tombstones."""
    count = draw(st.integers(1, max_size))
    deleted = [tombstones and draw(st.integers(0, 4)) == 0 for _ in range(count)]
    columns: dict[str, Any] = {}
    for field in schema.fields:
        made = values_of(field)
        values = [draw(made) for _ in range(count)]
        if field.role in {Role.NONE, Role.TAG}:
            values = [None if gone else value for gone, value in zip(deleted, values, strict=True)]
        columns[field.name] = pa.array(values, arrow_type(field))
    if any(deleted):
        columns[DELETED] = pa.array(deleted)
    for name, kind, item in _OTHER_COLUMNS:
        role = {"_timestamp": Role.TIME, "_key": Role.KEY, "_tag": Role.TAG}.get(name)
        if (role is None or schema.field_of(role) is None) and draw(st.booleans()):
            columns[name] = pa.array([draw(item) for _ in range(count)], kind)
    return pa.RecordBatch.from_pydict(columns)


_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_PAIRS = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)})
_OTHER_COLUMNS: Sequence[tuple[str, pa.DataType, st.SearchStrategy[Any]]] = (
    ("_timestamp", pa.timestamp("us", "UTC"), st.integers(0, STAMP_US_MAX)),
    ("_key", pa.binary(), st.none() | st.binary(max_size=5)),
    ("_headers", _HEADERS, st.lists(_PAIRS, max_size=2)),
    ("_tag", pa.string(), st.none() | st.text(max_size=5)),
)


def layouts_of(*schemas: Schema) -> Layouts:
    """Return the layouts of schemas by number."""
    return {schema.number: row_layout(schema) for schema in schemas}


def encoded(
    layout: RowLayout, rows: pa.RecordBatch, codec: Codec = Codec.NONE, *, base: int | None = None, append_us: int = 1
) -> bytes:
    """Return a batch of rows as a producer sends it, or as an owner stores it at the offset `base`."""
    batch = encode_batch(
        stored_columns(layout, rows), now_us=NOW_US, codec=codec, producer_id=9, base_sequence=4, layout=layout
    )
    raw = bytearray(batch.to_bytes())
    if base is not None:
        stamp_owner(
            raw, base_offset=base, append_timestamp_us=append_us, epoch=3, owner_incarnation=7, previous_digest=0
        )
    return bytes(raw)


def retyped(batch: bytes, **changes: Any) -> bytes:
    """Return a typed batch with header fields changed and lengths and CRCs made to match its bytes again."""
    body = bytes(batch[HEADER_BYTES:])
    header = unpack_header(batch[:HEADER_BYTES], typed=True)
    uncompressed = len(body) if header.codec is Codec.NONE else header.uncompressed_length
    fixed = {"body_length": len(body), "uncompressed_length": uncompressed, "body_crc": crc32c(body), **changes}
    return header._replace(**fixed).pack() + body


def with_columns(layout: RowLayout, columns: pa.RecordBatch, **changes: Any) -> bytes:
    """Put the header of a layout in front of any columns, whether they are those of its schema or not."""
    body = bytes(memoryview(columns.serialize()))
    stamps: list[Any] = [NOW_US]
    flags = 0
    for bit, name in enumerate(("timestamp", "key", "value", "headers", "tag")):
        if name in columns.schema.names:
            flags |= 1 << bit
    if flags & 1:
        stamps = columns.column("timestamp").cast(pa.int64()).to_pylist()
    header = BatchHeader(
        flags=flags,
        body_length=len(body),
        uncompressed_length=len(body),
        record_count=columns.num_rows,
        body_crc=crc32c(body),
        last_offset_delta=columns.num_rows - 1,
        base_timestamp_us=min(stamps),
        max_timestamp_us=max(stamps),
        schema_id=layout.number,
        schema_digest=layout.digest,
    )
    return header._replace(**changes).pack() + body


def parsed(batch: bytes | bytearray, layouts: Layouts) -> RecordBatch:
    """Return a batch as a reader with the schemas sees it."""
    return RecordBatch.parse(batch, layouts)


def spliced(draw: st.DrawFn, raw: bytearray) -> None:
    """Overwrite some numbers of a body, and perhaps swap two pieces of it."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(HEADER_BYTES, len(raw) - 1))
        layout = draw(st.sampled_from(["<b", "<h", "<i", "<q"]))
        size = min(struct.calcsize(layout), len(raw) - at)
        number = draw(st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 1, 8, 2**31 - 1]))
        raw[at : at + size] = struct.pack("<Q", number % 2**64)[:size]
    if draw(st.integers(0, 3)) == 0:
        one, two = sorted(8 * draw(st.integers(HEADER_BYTES // 8, len(raw) // 8 - 1)) for _ in range(2))
        size = min(8 * draw(st.integers(1, 4)), len(raw) - two, two - one)
        raw[one : one + size], raw[two : two + size] = raw[two : two + size], raw[one : one + size]
