"""Rows of a schema as columns: a function that is compiled from the schema once checks and copies each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.rows.value_checks import (
    INT_BITS,
    RowError,
    check_names,
    fixed_bytes,
    leaf_check,
    members_of,
    nested_check,
    text_bytes,
)
from tidelog_proto.batch.columns import TIMESTAMP_US_MAX, Headers, columns_of
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.row_layout import RowLayout, row_layout
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_error import shown
from tidelog_proto.schema.topic_schema import Schema

_SIGN: Final = 1 << 63
_EPOCH_DAY: Final = 719_163
"""`date.toordinal` of 1970-01-01."""
_TIME_CONSTANTS: Final = {
    "datetime": datetime,
    "UTC": UTC,
    "EPOCH": datetime(1970, 1, 1, tzinfo=UTC),
    "MICROSECOND": timedelta(microseconds=1),
}
"""Names in the compiled functions."""


class CopiedRow(NamedTuple):
    """A row that was checked and copied.

    Attributes:
        values: of the fields without a role, in order; None for a tombstone.
        key: the bytes of the key field; None for null, or without such a field.
        tag: the tag field; None for null, or without such a field.
        timestamp_us: the time field, µs since 1970; None without such a field.
        size_bytes: estimated size in memory.
    """

    values: tuple[Any, ...] | None
    key: bytes | None
    tag: str | None
    timestamp_us: int | None
    size_bytes: int


CopiedFields = tuple[tuple[Any, ...] | None, bytes | None, str | None, int | None, int]
"""The fields of a `CopiedRow`: a plain tuple costs a third."""


class RowWriter:
    """Checks rows of one schema, and makes columns of them. Immutable; `row_writer` returns one for each schema.

    Attributes:
        schema: the schema.
        layout: that of its batches.
        has_time: whether the schema has a time field.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.layout: RowLayout = row_layout(schema)
        self.has_time = self.layout.time is not None
        self._names = frozenset(field.name for field in schema.fields)
        self._copy = _compiled(schema)
        self._types = [(field, arrow_type(field)) for field in schema.value_fields]
        self._nulls = (None,) * len(self._types)
        self._of_roles = [
            (field, leaf_check(field, (field.name,))) for field in schema.fields if field.role is not Role.NONE
        ]

    def copy(self, row: Any) -> CopiedFields:
        """Check and copy a row: a mapping of the fields, a dataclass or a pydantic model; see `CopiedRow`.

        Raises:
            RowError: a value does not fit its field exactly, a required field is missing, or a name is unknown.
        """
        if type(row) is not dict:
            members = members_of(row)
            if members is None:
                raise RowError(
                    "the topic is typed: a row must be a dict, a dataclass or a pydantic model, got the "
                    f"{type(row).__name__} {shown(row)}"
                )
            row = dict(members)
        try:
            return self._copy(row)
        except KeyError:
            check_names(row, self._names, ())
            return self._copy(dict.fromkeys(self._names) | row)

    def tombstone(self, fields: Mapping[str, Any], now_us: int) -> CopiedRow:
        """Return the tombstone of a key.

        Args:
            fields: the key field, and optionally the time and tag.
            now_us: the time of the tombstone if `fields` lacks it, µs since 1970.

        Raises:
            RowError: the schema has no key field, or a field is missing, unknown, or without a role.
        """
        key = self.layout.key
        if key is None:
            raise RowError("the schema has no key field, so no record can be deleted; retention removes old records")
        if fields.get(key.name) is None:
            raise RowError(f"a tombstone needs the key field {shown(key.name)}; give its value")
        check_names(fields, frozenset(field.name for field, _ in self._of_roles), ())
        found: dict[Role, Any] = {}
        for field, check in self._of_roles:
            value = fields.get(field.name)
            if field.role is Role.TIME:
                found[field.role] = now_us if value is None else check(value)
                if not 0 <= found[field.role] <= TIMESTAMP_US_MAX:
                    _bad_time(found[field.role])
            elif value is not None:
                found[field.role] = check(value)
        bytes_of_key = _key_bytes(found[Role.KEY], key)
        tag = None if Role.TAG not in found else _tag(found[Role.TAG])
        size_bytes = fixed_bytes(self.schema.value_fields) + len(bytes_of_key) + len(tag or "")
        return CopiedRow(None, bytes_of_key, tag, found.get(Role.TIME), size_bytes)

    def key_of(self, value: Any) -> bytes:
        """Return the bytes of a key.

        Raises:
            RowError: the schema has no key field, or the value does not fit it.
        """
        key = self.layout.key
        if key is None:
            raise RowError("the schema has no key field; give the key as bytes")
        stored = leaf_check(replace(key, required=True), (key.name,))(value)
        return _key_bytes(stored, key)

    def columns(
        self,
        values: Sequence[tuple[Any, ...] | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        timestamps_us: Sequence[int] | None = None,
        headers: Sequence[Headers | None] | None = None,
        tags: Sequence[str | None] | None = None,
    ) -> pa.RecordBatch:
        """Return the columns of a batch of the schema; the arguments are lists of what `copy` returns.

        Raises:
            TypeError, ValueError: headers are not pairs of a str and bytes or None.
        """
        count = len(values)
        without: list[None] = [None]
        canonical = columns_of(without * count, keys=keys, timestamps_us=timestamps_us, headers=headers, tags=tags)
        names = canonical.schema.names
        arrays: list[Any] = list(canonical.columns)
        arrays[names.index("value")] = self._struct(values)
        flags = self.layout.flags_of(
            canonical.schema.set(names.index("value"), pa.field("value", self.layout.value_type))
        )
        return pa.RecordBatch.from_arrays(arrays, schema=self.layout.stored_schema(flags))

    def _struct(self, values: Sequence[tuple[Any, ...] | None]) -> pa.Array[Any]:
        deleted: Any = None
        if None in values:
            marks = np.fromiter((value is None for value in values), np.bool_, len(values))
            deleted = pa.array(marks)
            values = [self._nulls if value is None else value for value in values]
        columns = zip(*values, strict=True) if values else [()] * len(self._types)
        children = [_array(column, kind) for column, (_, kind) in zip(columns, self._types, strict=True)]
        struct: Any = pa.StructArray.from_arrays(children, fields=list(self.layout.value_type), mask=deleted)
        return struct if deleted is None else exact_values(struct)


@lru_cache(maxsize=1024)
def row_writer(schema: Schema) -> RowWriter:
    """Return the writer of a schema."""
    return RowWriter(schema)


def _array(column: Sequence[Any], kind: Any) -> pa.Array[Any]:
    if pa.types.is_timestamp(kind):
        stamps: pa.Array[Any] = pa.array(column, pa.int64()).view(kind)
        return stamps
    array: pa.Array[Any] = pa.array(column, kind)
    return array


def _compiled(schema: Schema) -> Callable[[dict[str, Any]], CopiedFields]:
    """Compile the function that checks and copies a dict with all fields; it raises KeyError if one is missing.

    The source has no text of the schema, only the positions of fields: names and checks are constants.
    """
    constants: dict[str, Any] = {"text_bytes": text_bytes, "bad_time": _bad_time, **_TIME_CONSTANTS}
    lines = ["def copy(row):"]
    lines += [f"    if len(row) != {len(schema.fields)}: raise KeyError"]
    lines += [f"    s = {fixed_bytes(schema.fields)}"]
    for at, field in enumerate(schema.fields):
        constants[f"n{at}"] = field.name
        lines.append(f"    v{at} = row[n{at}]")
        lines += [f"    {line}" for line in _lines(at, field, constants)]
    value = "".join(f"v{at}, " for at, field in enumerate(schema.fields) if field.role is Role.NONE)
    by_role = {field.role: f"v{at}" for at, field in enumerate(schema.fields)}
    roles = ", ".join(by_role.get(role, "None") for role in (Role.KEY, Role.TAG, Role.TIME))
    lines.append(f"    return ({value}), {roles}, s")
    exec("\n".join(lines), constants)  # noqa: S102 - as namedtuple does; the source has only numbers from here
    copy: Callable[[dict[str, Any]], CopiedFields] = constants["copy"]
    return copy


def _lines(at: int, field: Field, constants: dict[str, Any]) -> list[str]:
    """Return the lines that check the variable `v<at>`, and add its size to `s`."""
    v, kind, role = f"v{at}", field.type.kind, field.role
    if field.children:
        constants[f"c{at}"] = nested_check(field, (field.name,))
        return [f"{v}, size = c{at}({v})", "s += size"]
    check = leaf_check(field, (field.name,))
    constants[f"c{at}"] = check if role is Role.NONE else _role_check(field, check)
    checked = f"{v} = c{at}({v})"
    if role is Role.TIME:
        return [
            f"if type({v}) is datetime and {v}.tzinfo is UTC: {v} = ({v} - EPOCH) // MICROSECOND",
            f"else: {checked}",
            f"if not 0 <= {v} <= {TIMESTAMP_US_MAX}: bad_time({v})",
        ]
    if role is Role.KEY and kind is Kind.STRING:
        return [
            f"if type({v}) is str and {v}.isascii(): {v} = {v}.encode()",
            f"else: {checked}",
            f"if {v} is not None: s += len({v})",
        ]
    if role is not Role.NONE:
        return [checked, f"if {v} is not None: s += len({v})"]
    if kind in INT_BITS:
        half = 1 << INT_BITS[kind] - 1
        return [f"if type({v}) is not int or not {-half} <= {v} < {half}: {checked}"]
    if kind is Kind.BOOL:
        return [f"if {v} is not True and {v} is not False: {checked}"]
    if kind is Kind.FLOAT64:
        return [f"if type({v}) is not float: {checked}"]
    if kind is Kind.TIMESTAMP_UTC:
        fast = f"if type({v}) is datetime and {v}.tzinfo is UTC: {v} = ({v} - EPOCH) // MICROSECOND"
        return [fast, f"else: {checked}"]
    if kind is Kind.STRING:
        return [
            f"if type({v}) is str and {v}.isascii(): s += len({v})",
            "else:",
            f"    {checked}",
            f"    if {v} is not None: s += text_bytes({v})",
        ]
    if kind is Kind.BINARY:
        return [f"if type({v}) is not bytes: {checked}", f"if {v} is not None: s += len({v})"]
    return [checked]


def _role_check(field: Field, check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the check of a field with a role, which returns what its column holds."""
    if field.role is Role.TIME:
        return check
    if field.role is Role.TAG:
        return lambda value: None if value is None else _tag(check(value))

    def key(value: Any) -> bytes | None:
        stored = check(value)
        return None if stored is None else _key_bytes(stored, field)

    return key


def _bad_time(stamp_us: int) -> None:
    raise RowError(
        f"the time field is {stamp_us} µs since 1970, and the time of a record must be in the years 1970 to 9999; "
        "correct the value"
    )


def _tag(tag: str) -> str:
    if (size := text_bytes(tag)) > TAG_BYTES_MAX:
        raise RowError(f"the tag has {size} bytes of UTF-8, and the limit is {TAG_BYTES_MAX}; shorten it")
    return tag


def _key_bytes(stored: Any, field: Field) -> bytes:
    """Return the bytes of a key as `tidelog_proto.batch.key_bytes` does."""
    kind = field.type.kind
    if kind is Kind.STRING:
        return stored.encode()  # type: ignore[no-any-return]
    if kind is Kind.BINARY:
        return stored  # type: ignore[no-any-return]
    number = stored.toordinal() - _EPOCH_DAY if kind is Kind.DATE32 else stored
    return int(number + _SIGN).to_bytes(8, "big")
