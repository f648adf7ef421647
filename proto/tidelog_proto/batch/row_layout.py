"""The layout of typed batches: the columns and buffers of a body, given a schema and the flags of a header.

A record of a typed batch is a row: the column `value` is `struct<fields>`, and a null struct is a tombstone. A field
with a role lies in another column only: the time in `timestamp`, the key in `key` (as bytes, see
`key_bytes.py`), the tag in `tag`. A missing column `key` or `tag` means that all of its values are null.

A RecordBatch message contains no types. So every array and buffer is compared with the schema before pyarrow reads the
message; pyarrow would read the buffers of another type as wrong values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import FLAG_OF_NAME, stored_schema_of
from tidelog_proto.batch.header import COLUMN_FLAGS, BatchHeader, Flags
from tidelog_proto.batch.ipc_message import Message, padded
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.arrow_types import arrow_field, value_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Role, fields_below
from tidelog_proto.schema.topic_schema import Schema

VARIABLE: Final = -1
"""`data_bits` of text and bytes."""
_BITS: Final = {
    Kind.BOOL: 1,
    Kind.INT8: 8,
    Kind.INT16: 16,
    Kind.INT32: 32,
    Kind.INT64: 64,
    Kind.FLOAT32: 32,
    Kind.FLOAT64: 64,
    Kind.DECIMAL128: 128,
    Kind.STRING: VARIABLE,
    Kind.BINARY: VARIABLE,
    Kind.DATE32: 32,
    Kind.TIMESTAMP: 64,
    Kind.TIMESTAMP_UTC: 64,
}
_DATED: Final = frozenset({Kind.DATE32, Kind.TIMESTAMP, Kind.TIMESTAMP_UTC})
"""Types whose values must lie in the years 1 to 9999."""
_OFFSET_BYTES: Final = 4
_WRITER_PADDING_BYTES: Final = 64
_ARRAY_LENGTH_MAX: Final = 2**31 - 1
"""Maximum length of the items of lists, which have offsets of 32 bits."""


class ArrayPlan(NamedTuple):
    """Expected properties of one array of a message.

    Attributes:
        name: of the column or field, for messages.
        parent: index of the array whose length this one shares; `RECORDS` for the record count, `FREE` for the items
            of a list.
        nullable: whether the array may have nulls at all.
        required: whether only tombstones may have nulls in it.
        offsets: whether offsets follow the validity bitmap.
        data_bits: size of an item of the data buffer, `VARIABLE`, or 0 for no data buffer.
        top: index of the field of the struct in `value` to which the array belongs, -1 if it is not in a struct.
        field_id: id of its field of `value`, 0 for another array.
    """

    name: str
    parent: int
    nullable: bool = True
    required: bool = False
    offsets: bool = False
    data_bits: int = 0
    top: int = -1
    field_id: int = 0


RECORDS: Final = -1
FREE: Final = -2


class Plan(NamedTuple):
    """The arrays of a message, depth first, and the number of their buffers."""

    arrays: tuple[ArrayPlan, ...]
    buffer_count: int


class RowLayout:
    """The layout of the batches of one schema. Immutable; `row_layout` returns one for each schema.

    Args:
        schema: the schema.
        value_fields: those of `value` that a projected batch has (`field_selection.py`); None for all.

    Attributes:
        schema: the schema.
        number, digest: of the schema.
        value_fields: the fields of the struct in `value`.
        row_schema: the Arrow schema of rows: the fields with a role and those of `value`, in the order of the schema.
        time, key, tag: the field with this role, None if no field has it.
        key_type: the Arrow type of the key field, None without a key field.
        dated: for each field of `value` whether it has dates or timestamps.
        dated_any: whether any of them has.
        ruled_fields: those of `value`, with their indices, that have dates or timestamps or are required, at any level.
        has_lists: whether there is a list at any level.
    """

    def __init__(self, schema: Schema, value_fields: tuple[Field, ...] | None = None) -> None:
        self.schema = schema
        self.number = schema.number
        self.digest = schema.digest
        self.value_fields = schema.value_fields if value_fields is None else value_fields
        by_id = {field.id: field for field in self.value_fields}
        fields = [field if field.role else by_id.get(field.id) for field in schema.fields]
        self.row_schema: pa.Schema = pa.schema([arrow_field(field) for field in fields if field is not None])
        self.value_type: pa.StructType = (
            value_type(schema) if value_fields is None else pa.struct([arrow_field(field) for field in value_fields])
        )
        self.time = schema.field_of(Role.TIME)
        self.key = schema.field_of(Role.KEY)
        self.tag = schema.field_of(Role.TAG)
        self.key_type: pa.DataType | None = arrow_field(self.key).type if self.key is not None else None
        self.dated: tuple[bool, ...] = tuple(_has_dates(field) for field in self.value_fields)
        self.dated_any = any(self.dated)
        self.ruled_fields: tuple[tuple[int, Field], ...] = tuple(
            (at, field)
            for at, field in enumerate(self.value_fields)
            if self.dated[at] or any(below.required for below in fields_below([field]))
        )
        self.has_lists = any(field.type.kind is Kind.LIST for field in fields_below(self.value_fields))
        self._stored: dict[int, pa.Schema] = {}
        self._plans: dict[int, Plan] = {}

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, RowLayout)
            and self.schema == other.schema
            and (self.value_fields is other.value_fields or self.value_fields == other.value_fields)
        )

    def __hash__(self) -> int:
        return self.digest

    def stored_schema(self, flags: int) -> pa.Schema:
        """Return the Arrow schema of a body with these flags."""
        known = flags & (COLUMN_FLAGS | Flags.DERIVED)
        stored = self._stored.get(known)
        if stored is None:
            plain = stored_schema_of(known)
            at = plain.get_field_index("value")
            stored = plain if at < 0 else plain.set(at, pa.field("value", self.value_type))
            self._stored[known] = stored
        return stored

    def flags_of(self, columns: pa.Schema) -> int:
        """Return the flags of stored columns.

        Raises:
            TypeError: these are not the columns of this schema; convert rows with `stored_columns`.
        """
        flags = sum(FLAG_OF_NAME.get(name, 0) for name in columns.names)
        if not flags & Flags.VALUE or not columns.equals(self.stored_schema(flags)):
            raise TypeError(
                f"expected the columns of schema {self.number}, got {columns}; convert rows with "
                "tidelog_proto.batch.typed_rows.stored_columns"
            )
        return flags

    def plan(self, flags: int) -> Plan:
        """Return the arrays of a body with these flags."""
        known = flags & (COLUMN_FLAGS | Flags.DERIVED)
        plan = self._plans.get(known)
        if plan is None:
            plan = self._plans[known] = _plan(self, known)
        return plan

    def check_header(self, header: BatchHeader) -> None:
        """Compare the header of a typed batch with the schema.

        Raises:
            ProtocolError: CORRUPT_BATCH if number or digest are those of another schema, or a column that holds a
                required field is missing.
        """
        if (header.schema_id, header.schema_digest) != (self.number, self.digest):
            raise _corrupt(
                f"the batch has schema {header.schema_id} with digest {header.schema_digest:#010x}; schema "
                f"{self.number} has digest {self.digest:#010x}: reload the schemas of the topic"
            )
        if header.flags & Flags.PROJECTED:
            return
        needed = (Flags.TIMESTAMP, self.time), (Flags.KEY, self.key)
        for flag, field in needed:
            if field is not None and field.required and not header.flags & flag:
                raise _corrupt(
                    f"the batch has flags {header.flags:#x}, which lack the column {flag:#x} of the required field "
                    f"{field.name!r}"
                )


Layouts = Mapping[int, RowLayout]
"""The layouts of a topic's schemas, by number."""


@lru_cache(maxsize=4096)
def row_layout(schema: Schema) -> RowLayout:
    """Return the layout of a schema's batches.

    The rules of schemas bound the number of arrays and buffers, so that each batch fits the limits of messages.
    """
    return RowLayout(schema)


def check_arrays(plan: Plan, message: Message, lengths: list[int], record_count: int) -> set[int]:
    """Compare the arrays and buffers of a message with a plan.

    Args:
        plan: of the header's flags.
        message: the parsed message.
        lengths: sizes of the message's buffers in bytes, after decompression.
        record_count: the record count in the header.

    Returns:
        The indices of the fields of `value` that have nulls in a required field, which only tombstones and nulls above
        it excuse.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    if message.record_count != record_count:
        raise _corrupt(f"the body has {message.record_count} rows, but the header declares {record_count} records")
    if len(message.nodes) != len(plan.arrays) or len(lengths) != plan.buffer_count:
        raise _corrupt(
            f"the body has {len(message.nodes)} arrays in {len(lengths)} buffers; the columns of the schema that the "
            f"header declares require {len(plan.arrays)} arrays in {plan.buffer_count} buffers"
        )
    suspects: set[int] = set()
    buffers = iter(lengths)
    for array, (length, null_count) in zip(plan.arrays, message.nodes, strict=True):
        _check_length(array, length, message, record_count)
        nulls_max = length if array.nullable else 0
        if not 0 <= null_count <= nulls_max:
            raise _corrupt(
                f"the Arrow array of {array.name}: {null_count} nulls in {length} entries, expected 0 to {nulls_max}"
            )
        validity_bytes = -(-length // 8) if null_count else 0
        _expect(array, "validity", next(buffers), validity_bytes)
        if null_count and array.required:
            suspects.add(array.top)
        if array.offsets:
            offsets_bytes = next(buffers)
            # Arrow allows an empty array to have no offsets.
            if length or offsets_bytes:
                needed_bytes = (length + 1) * _OFFSET_BYTES
                _expect(array, "offsets", offsets_bytes, needed_bytes, padded(needed_bytes))
        if array.data_bits:
            data_bytes = next(buffers)
            if array.data_bits != VARIABLE:
                _expect(array, "data", data_bytes, -(-length * array.data_bits // 8))
    return suspects


def _check_length(array: ArrayPlan, length: int, message: Message, record_count: int) -> None:
    if array.parent == FREE:
        if not 0 <= length <= _ARRAY_LENGTH_MAX:
            raise _corrupt(
                f"the Arrow array of {array.name}: {length} entries, expected 0 to {_ARRAY_LENGTH_MAX} for items"
            )
        return
    expected = record_count if array.parent == RECORDS else message.nodes[array.parent][0]
    if length != expected:
        raise _corrupt(f"the Arrow array of {array.name}: {length} entries, expected {expected}")


def _expect(array: ArrayPlan, what: str, actual_bytes: int, needed_bytes: int, most_bytes: int | None = None) -> None:
    """Refuse a buffer that is too short, or longer than padding allows: by default the padding of Arrow's writer."""
    most = -(-needed_bytes // _WRITER_PADDING_BYTES) * _WRITER_PADDING_BYTES if most_bytes is None else most_bytes
    if not needed_bytes <= actual_bytes <= most:
        wanted = f"{needed_bytes}" if needed_bytes == most else f"{needed_bytes} to {most}"
        raise _corrupt(f"the Arrow array of {array.name}: {actual_bytes} bytes of {what}, expected {wanted}")


def _plan(layout: RowLayout, flags: int) -> Plan:
    arrays: list[ArrayPlan] = []
    if flags & Flags.DERIVED:
        arrays.append(ArrayPlan("offset delta", RECORDS, nullable=False, data_bits=32))
    if flags & Flags.TIMESTAMP:
        arrays.append(ArrayPlan("timestamp", RECORDS, nullable=False, data_bits=64))
    if flags & Flags.KEY:
        nullable = layout.key is None or not layout.key.required
        arrays.append(ArrayPlan("key", RECORDS, nullable=nullable, offsets=True, data_bits=VARIABLE))
    if flags & Flags.VALUE:
        at = len(arrays)
        arrays.append(ArrayPlan("value", RECORDS))
        for top, field in enumerate(layout.value_fields):
            _append_field(arrays, field, field.name, at, top)
    if flags & Flags.HEADERS:
        arrays.append(ArrayPlan("headers", RECORDS, nullable=False, offsets=True))
        arrays.append(ArrayPlan("a header", FREE, nullable=False))
        at = len(arrays) - 1
        arrays.append(ArrayPlan("a header's key", at, nullable=False, offsets=True, data_bits=VARIABLE))
        arrays.append(ArrayPlan("a header's value", at, offsets=True, data_bits=VARIABLE))
    if flags & Flags.TAG:
        arrays.append(ArrayPlan("tag", RECORDS, offsets=True, data_bits=VARIABLE))
    return Plan(tuple(arrays), sum(1 + array.offsets + (array.data_bits != 0) for array in arrays))


def _append_field(arrays: list[ArrayPlan], field: Field, name: str, parent: int, top: int) -> None:
    kind = field.type.kind
    bits = _BITS.get(kind, 0)
    offsets = bits == VARIABLE or kind is Kind.LIST
    at = len(arrays)
    required = field.required
    arrays.append(ArrayPlan(f"field {name}", parent, True, required, offsets, bits, top, field.id))
    for child in field.children:
        _append_field(arrays, child, f"{name}.{child.name}", FREE if kind is Kind.LIST else at, top)


def _has_dates(field: Field) -> bool:
    return field.type.kind in _DATED or any(map(_has_dates, field.children))


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
