"""Checks of single values of rows, by the type of their field.

A value is taken only if its field holds it exactly; nothing is parsed or converted: text is not a number, 1.0 not an
integer, True not 1. The one exception is `float32`, where a Python float becomes the nearest number, as a literal does
in languages that have the type.

A check returns the value that Arrow stores: timestamps are µs since 1970, structs tuples in the order of their fields,
lists new lists. So no mutable object of the caller is kept.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, Final, NamedTuple, NoReturn

from tidelog.errors import SerializationError
from tidelog_proto.batch.key_bytes import STAMP_US_MAX, STAMP_US_MIN
from tidelog_proto.schema.data_types import INTEGERS, Kind
from tidelog_proto.schema.fields import Field, Path, path_text
from tidelog_proto.schema.schema_error import shown

INT_BITS: Final = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
"""Widths of the integer types."""
ITEM_BYTES: Final = 4
"""Estimated size of a list or a text besides its contents."""

_SHOWN_MAX: Final = 100
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of timestamps without a time zone
_DAY_S: Final = 86_400
_MILLION: Final = 1_000_000
_FLOAT32: Final = struct.Struct("<f")
_FIXED_BYTES: Final = {
    Kind.BOOL: 1,
    **{kind: bits // 8 for kind, bits in INT_BITS.items()},
    Kind.FLOAT32: 4,
    Kind.FLOAT64: 8,
    Kind.DECIMAL128: 16,
    Kind.DATE32: 4,
    Kind.TIMESTAMP: 8,
    Kind.TIMESTAMP_UTC: 8,
}


class RowError(SerializationError):
    """A row does not fit the schema; a newer schema of the topic may accept it."""


class Checked(NamedTuple):
    """A value that was taken.

    Attributes:
        value: as Arrow stores it; None for null.
        size_bytes: estimated size of its strings, bytes and lists, beyond `fixed_bytes`.
    """

    value: Any
    size_bytes: int


Check = Callable[[Any], Any]
"""Returns the value of a leaf to store; raises RowError."""
NestedCheck = Callable[[Any], Checked]
"""Returns the value of a list or struct to store; raises RowError."""


def fixed_bytes(fields: Sequence[Field]) -> int:
    """Return the size of a row without its strings, bytes and lists, in bytes."""
    return sum(
        fixed_bytes(field.children) if field.type.kind is Kind.STRUCT else _FIXED_BYTES.get(field.type.kind, ITEM_BYTES)
        for field in fields
    )


def leaf_check(field: Field, path: Path) -> Check:
    """Return the check of a field without children; `path` includes the field's name."""
    convert = _converter(field)

    def check(value: Any) -> Any:
        if value is None:
            return _null(field, path)
        stored = convert(value)
        if stored is None:
            misfit(field, path, value)
        return stored

    return check


def nested_check(field: Field, path: Path) -> NestedCheck:
    """Return the check of a list or struct; `path` includes the field's name."""
    return _list_check(field, path) if field.type.kind is Kind.LIST else _struct_check(field, path)


def members_of(value: Any) -> Mapping[str, Any] | None:
    """Return the fields of a mapping, dataclass or pydantic model; None for other objects. Nothing is copied deeply."""
    if isinstance(value, Mapping):
        return value
    if isinstance(names := getattr(type(value), "model_fields", None), Mapping):
        extra = getattr(value, "model_extra", None) or {}
        return {name: getattr(value, name) for name in names} | extra
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return None


def check_names(row: Mapping[Any, Any], names: frozenset[str], parent: Path) -> None:
    """Refuse names that are not fields.

    Raises:
        RowError: a name is unknown.
    """
    if row.keys() <= names:
        return
    unknown = [name for name in row if name not in names]
    where = f"field {shown(path_text(parent))} has" if parent else "the row has"
    raise RowError(
        f"{where} {shown(unknown)}, and the schema only {shown(sorted(names))}; correct the name, or add the field "
        "with evolve_schema"
    )


def misfit(field: Field, path: Path, value: Any) -> NoReturn:
    """Refuse a value.

    Raises:
        RowError: always.
    """
    raise RowError(
        f"field {shown(path_text(path))}: expected {field.type}, got the {type(value).__name__} {_shown(value)}; "
        f"{_remedy(field, value)}"
    )


def _shown(value: object) -> str:
    """Return the text of any object of an application for a message."""
    try:
        return shown(value[:_SHOWN_MAX] if isinstance(value, str | bytes) else value)
    except Exception:  # noqa: BLE001 - `repr` of the application's object may raise anything
        return "(without a text)"


def _null(field: Field, path: Path) -> Any:
    """Return None for a missing value; refuse it in a required field."""
    if field.required:
        raise RowError(f"field {shown(path_text(path))} is required, and missing or None; give a {field.type}")
    return None


def _remedy(field: Field, value: Any) -> str:
    kind = field.type.kind
    if kind in INTEGERS and type(value) is int:
        bits = INT_BITS[kind]
        return f"give {-(1 << bits - 1)} to {(1 << bits - 1) - 1}, or widen the field"
    if kind is Kind.TIMESTAMP_UTC and isinstance(value, datetime) and value.tzinfo is None:
        return "give it a time zone, such as tzinfo=datetime.UTC"
    if kind is Kind.TIMESTAMP and isinstance(value, datetime) and value.tzinfo is not None:
        return "remove the time zone with replace(tzinfo=None), or use a field of timestamp[us, UTC]"
    return _REMEDIES[kind]


_REMEDIES: Final = {
    Kind.BOOL: "give True or False",
    **dict.fromkeys(INTEGERS, "give an int"),
    Kind.FLOAT32: "give a float within its range",
    Kind.FLOAT64: "give a float, or an int that a float holds exactly",
    Kind.DECIMAL128: "give a Decimal or an int with at most these digits",
    Kind.STRING: "give a str of valid Unicode",
    Kind.BINARY: "give bytes",
    Kind.DATE32: "give a datetime.date",
    Kind.TIMESTAMP: "give a datetime without a time zone, in whole microseconds",
    Kind.TIMESTAMP_UTC: "give a datetime with a time zone, in whole microseconds of the years 1 to 9999",
    Kind.LIST: "give a list",
    Kind.STRUCT: "give a dict, a dataclass or a pydantic model",
}


def _converter(field: Field) -> Callable[[Any], Any]:
    """Return a function that returns the value to store, None for a value that does not fit."""
    kind, precision, scale = field.type
    if kind in INT_BITS:
        return _int_converter(INT_BITS[kind])
    if kind is Kind.DECIMAL128:
        return _decimal_converter(precision, scale)
    return _CONVERTERS[kind]


def _int_converter(bits: int) -> Callable[[Any], Any]:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: Any) -> Any:
        number = _whole(value)
        return number if number is not None and least <= number <= most else None

    return convert


def _whole(value: Any) -> int | None:
    """Return an integer, such as one of NumPy, as an int; None for other objects, and for booleans."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__") or type(value).__name__ in {"bool", "bool_"}:
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array of NumPy has the method, and more than one number
        return None


def _bool(value: Any) -> Any:
    if type(value) is bool:
        return value
    return bool(value) if type(value).__name__ in {"bool", "bool_"} else None


def _float64(value: Any) -> Any:
    if isinstance(value, float):
        return float(value)
    if type(value).__name__ in {"float32", "float16"}:  # of NumPy; each of their numbers is one of float64
        return float(value)
    number = _whole(value)
    try:
        return None if number is None or int(float(number)) != number else float(number)
    except OverflowError:
        return None


def _float32(value: Any) -> Any:
    number = _float64(value)
    if number is None or not math.isfinite(number):
        return number
    try:
        (nearest,) = _FLOAT32.unpack(_FLOAT32.pack(number))
    except OverflowError:
        return None
    return nearest if isinstance(value, float) or nearest == number else None


def _decimal_converter(precision: int, scale: int) -> Callable[[Any], Any]:
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation, Overflow])
    step = Decimal((0, (1,), -scale))

    def convert(value: Any) -> Any:
        if not isinstance(value, Decimal):
            number = _whole(value)
            if number is None or number.bit_length() > 4 * precision + 4:
                return None
            value = Decimal(number)
        if not value.is_finite():
            return None
        try:
            return value.quantize(step, context=exact)
        except (Inexact, InvalidOperation, Overflow):
            return None

    return convert


def _string(value: Any) -> Any:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return str.__str__(value)  # `str` of an Enum with text would be its name


def _binary(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else None


def _date(value: Any) -> Any:
    return (
        date(value.year, value.month, value.day)
        if isinstance(value, date) and not isinstance(value, datetime)
        else None
    )


def _stamp(value: Any) -> Any:
    if not isinstance(value, datetime) or value.tzinfo is not None or getattr(value, "nanosecond", False):
        return None
    return _microseconds(value - _LOCAL_EPOCH)


def _stamp_utc(value: Any) -> Any:
    if not isinstance(value, datetime) or value.utcoffset() is None or getattr(value, "nanosecond", False):
        return None
    stamp_us = _microseconds(value - _EPOCH)
    return stamp_us if STAMP_US_MIN <= stamp_us <= STAMP_US_MAX else None


def _microseconds(since: timedelta) -> int:
    return (since.days * _DAY_S + since.seconds) * _MILLION + since.microseconds


_CONVERTERS: Final[dict[Kind, Callable[[Any], Any]]] = {
    Kind.BOOL: _bool,
    Kind.FLOAT32: _float32,
    Kind.FLOAT64: _float64,
    Kind.STRING: _string,
    Kind.BINARY: _binary,
    Kind.DATE32: _date,
    Kind.TIMESTAMP: _stamp,
    Kind.TIMESTAMP_UTC: _stamp_utc,
}


def _list_check(field: Field, path: Path) -> NestedCheck:
    (item,) = field.children
    check, fixed = any_check(item, (*path, item.name)), fixed_bytes(field.children)

    def copy(value: Any) -> Checked:
        if value is None:
            return Checked(_null(field, path), 0)
        if not isinstance(value, list | tuple):
            misfit(field, path, value)
        items = [check(each) for each in value]
        return Checked([each.value for each in items], fixed * len(items) + sum(each.size_bytes for each in items))

    return copy


def _struct_check(field: Field, path: Path) -> NestedCheck:
    checks = [(child.name, any_check(child, (*path, child.name))) for child in field.children]
    names = frozenset(child.name for child in field.children)

    def copy(value: Any) -> Checked:
        if value is None:
            return Checked(_null(field, path), 0)
        members = members_of(value)
        if members is None:
            misfit(field, path, value)
        check_names(members, names, path)
        found = [check(members.get(name)) for name, check in checks]
        return Checked(tuple(each.value for each in found), sum(each.size_bytes for each in found))

    return copy


def any_check(field: Field, path: Path) -> NestedCheck:
    """Return the check of any field; `path` includes the field's name."""
    if field.children:
        return nested_check(field, path)
    check = leaf_check(field, path)
    sized = field.type.kind in {Kind.STRING, Kind.BINARY}

    def copy(value: Any) -> Checked:
        stored = check(value)
        return Checked(stored, text_bytes(stored) if sized and stored is not None else 0)

    return copy


def text_bytes(value: str | bytes) -> int:
    """Return the encoded size of text or bytes."""
    return len(value) if isinstance(value, bytes) or value.isascii() else len(value.encode())
