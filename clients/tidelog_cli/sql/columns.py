"""Which columns a topic has as a table of SQL: those of a record, and one for each field of JSON values.

What values are is found by looking at some records (`--values` says it instead):

    json    all are JSON objects; each field is a column, and the whole value is text
    text    all are UTF-8
    bytes   anything else

A field is a whole number, a number, true or false, or text; what has parts of its own, or is of several kinds, is the
text of its JSON. A value that does not fit is null there; the column `value` has all of it. A number that is not whole,
where only whole ones were seen, is an error: rounding it would change sums without a word.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tidelog.tables import TABLE_SCHEMA

RECORD_COLUMNS: Final = tuple(name for name in TABLE_SCHEMA.names if name != "topic")
FIELDS_MAX: Final = 1000
"""Columns that fields of JSON values may become."""
_EXACT_MAX: Final = 1 << 53
"""Up to here a double says whole numbers exactly."""
_LONG_MAX: Final = (1 << 63) - 1


class ValueKind(StrEnum):
    """What the values of a topic are taken for."""

    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


class FieldKind(StrEnum):
    """What a field of JSON values is."""

    WHOLE = "whole"
    LONG = "long"
    """Whole, and too large for a double."""
    NUMBER = "number"
    TRUTH = "truth"
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topic looks like.

    Attributes:
        values: what its values are.
        text_keys: whether all keys that were seen are UTF-8.
        fields: of JSON values, by name, those that become columns.
        hidden: fields that do not, since a column has their name, or there are too many.
    """

    values: ValueKind
    text_keys: bool
    fields: dict[str, FieldKind]
    hidden: tuple[str, ...] = ()


def shape_of(batches: Iterable[tuple[Iterable[bytes | None], Iterable[bytes | None]]], kind: ValueKind | None) -> Shape:
    """Return what a topic looks like whose records are like these; none of them is kept.

    Args:
        batches: of records, the keys and the values of each.
        kind: of the values; None to find out.
    """
    given = objects = 0
    text_keys = text_values = True
    seen: dict[str, FieldKind | None] = {}
    for keys, values in batches:
        text_keys = text_keys and all(_is_text(key) for key in keys if key is not None)
        for value in values:
            if value is None:
                continue
            # Found out is JSON as long as all were objects.
            one = _object(value) if kind is ValueKind.JSON or (kind is None and objects == given) else None
            given += 1
            text_values = text_values and (kind is not None or _is_text(value))
            if one is not None:
                objects += 1
                _note(one, seen)
    if kind is None:
        other = ValueKind.TEXT if text_values else ValueKind.BYTES
        kind = ValueKind.JSON if given and objects == given else other
    fields, hidden = _columns(seen if kind is ValueKind.JSON else {})
    return Shape(kind, text_keys, fields, tuple(hidden))


def _columns(seen: Mapping[str, FieldKind | None]) -> tuple[dict[str, FieldKind], list[str]]:
    """Return which of the fields become columns, and which do not; one that was only ever null is text."""
    taken = {name.lower() for name in RECORD_COLUMNS}
    fields: dict[str, FieldKind] = {}
    hidden: list[str] = []
    for name, field in seen.items():
        if name.lower() in taken or len(fields) == FIELDS_MAX or not name or not _has_utf8(name):
            hidden.append(name)
        else:
            taken.add(name.lower())
            fields[name] = FieldKind.TEXT if field is None else field
    return fields, hidden


def select_list(
    topic: str, shape: Shape, field_of: Callable[[str], str], quote: Callable[[str], str], raises: str
) -> list[str]:
    """Return the expressions of a topic's columns over a table that has a record's, in SQL that both engines take.

    Args:
        topic: its name, for errors.
        shape: what it looks like.
        field_of: returns how a field of the parsed value is reached.
        quote: quotes a name.
        raises: the function that ends a statement with a message.
    """
    own = [quote(name) for name in ("partition", "offset", "timestamp", "key")]
    fields = [
        f"{_converted(topic, name, kind, field_of(name), raises)} AS {quote(name)}"
        for name, kind in shape.fields.items()
    ]
    return [*own, *fields, quote("value"), quote("headers"), quote("tag")]


def _converted(topic: str, name: str, kind: FieldKind, field: str, raises: str) -> str:
    if kind not in {FieldKind.WHOLE, FieldKind.LONG}:
        return field
    bound = " below 2^53" if kind is FieldKind.WHOLE else ""
    message = (
        f"{topic}: {name} is not always a whole number{bound}, as it was in the records that were looked at; "
        "look at more of them with --sample"
    ).replace("'", "''").replace("\\", "")  # fmt: skip
    raised = f"CAST({raises}('{message}') AS BIGINT)"
    if kind is FieldKind.LONG:  # comes as text: engines round what they read as a whole number themselves, or drop it
        number = f"try_cast({field} AS DOUBLE)"
        return f"CASE WHEN floor({number}) <> {number} THEN {raised} ELSE try_cast({field} AS BIGINT) END"
    whole = f"{field} = floor({field}) AND abs({field}) <= {_EXACT_MAX}"
    return f"CASE WHEN {field} IS NULL OR ({whole}) THEN CAST({field} AS BIGINT) ELSE {raised} END"


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        one = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return one if isinstance(one, dict) else None


def _note(one: Mapping[str, Any], seen: dict[str, FieldKind | None]) -> None:
    """Take down what the fields of an object are; null is of no kind, wherever it comes."""
    for name, value in one.items():
        before = seen.setdefault(name, None)
        if value is not None:
            found = _kind_of(value)
            seen[name] = found if before is None else _both(before, found)


def _kind_of(value: Any) -> FieldKind:
    if isinstance(value, bool):
        return FieldKind.TRUTH
    if isinstance(value, int):
        if abs(value) <= _EXACT_MAX:
            return FieldKind.WHOLE
        return FieldKind.LONG if abs(value) <= _LONG_MAX else FieldKind.NUMBER
    if isinstance(value, float):
        return FieldKind.NUMBER
    return FieldKind.TEXT if isinstance(value, str) else FieldKind.JSON


_WIDTHS: Final = (FieldKind.WHOLE, FieldKind.LONG, FieldKind.NUMBER)


def _both(one: FieldKind, other: FieldKind) -> FieldKind:
    """Return what is both."""
    if one is other:
        return one
    if one in _WIDTHS and other in _WIDTHS:
        return max(one, other, key=_WIDTHS.index)
    return FieldKind.JSON


def _has_utf8(name: str) -> bool:
    """Whether a statement can name it: JSON may escape half of a surrogate pair, which no UTF-8 says."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
