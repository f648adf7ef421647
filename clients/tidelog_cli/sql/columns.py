"""Which columns a topic has as a table of SQL: those of a record, and one for each field of JSON values.

What values are is found by looking at some records (`--values` says it instead):

    json    all are JSON objects; each field is a column, and the whole value is text
    text    all are UTF-8
    bytes   anything else

`tidelog_proto.text.json_text` defines JSON, here and for both engines. A field gets a type that holds what was
seen exactly, see `FieldKind`; what has parts of its own, or is of several kinds, is the text of its JSON. A value of
another kind is null there; the column `value` has all of it. A number that the type would round is an error.

Engines parse JSON with doubles for numbers. So they get each number as a string, marked by a text that no record has
(`SafeNumbers`), and the types are made of the numbers' own digits, in SQL that both take (`select_list`).
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from tidelog.tables.read_arrow import TABLE_SCHEMA
from tidelog_proto.text.json_text import JsonNumber, exact_json

RECORD_COLUMNS: Final = tuple(name for name in TABLE_SCHEMA.names if name != "topic")
FIELDS_MAX: Final = 1000
"""Columns that fields of JSON values may become."""
DECIMAL_DIGITS: Final = 38
"""Of the widest exact type that both engines have."""
SHORT_CHARS: Final = 15
"""A double holds any number that is written in so many characters, without an exponent."""
NUMBER: Final = "-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?"
"""A number of JSON, as a regular expression without a backslash, which engines read differently."""
_LONG_MAX: Final = (1 << 63) - 1
_DAY: Final = "[0-9]{4}-[01][0-9]-[0-3][0-9]"
_TIME: Final = _DAY + "[T ][0-2][0-9]:[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?"


class ValueKind(StrEnum):
    """What the values of a topic are taken for."""

    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


class FieldKind(StrEnum):
    """What a field of JSON values is."""

    WHOLE = "whole"
    """Whole numbers of 64 bits."""
    HUGE = "huge"
    """Whole numbers of up to 38 digits."""
    NUMBER = "number"
    """Numbers that doubles hold: the shortest text of the double has the same significant digits."""
    DECIMAL = "decimal"
    """Numbers of up to 38 digits that doubles would round."""
    DIGITS = "digits"
    """Numbers that no type holds, as text."""
    TRUTH = "truth"
    DATE = "date"
    TIME = "time"
    """Date and time without a zone, to the microsecond."""
    MOMENT = "moment"
    """Date and time with an offset from UTC, to the microsecond."""
    TEXT = "text"
    JSON = "json"


ISO_FORMS: Final = {
    FieldKind.DATE: _DAY,
    FieldKind.TIME: _TIME,
    FieldKind.MOMENT: _TIME + "(Z|[-+][01][0-9]:[0-5][0-9])",
}
"""How dates and times are written (ISO 8601), as regular expressions without a backslash."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a topic looks like.

    Attributes:
        values: what its values are.
        text_keys: whether all keys that were seen are UTF-8.
        fields: of JSON values, by name, those that become columns.
        hidden: fields that do not, since a column has their name, or there are too many.
        scales: digits after the point, of fields that are DECIMAL.
    """

    values: ValueKind
    text_keys: bool
    fields: dict[str, FieldKind]
    hidden: tuple[str, ...] = ()
    scales: Mapping[str, int] = field(default_factory=dict)

    def told(self) -> list[str]:
        """Return what is to be said about columns that are not what JSON has."""
        cast = [f"{name!r} ({kind})" for name, kind in self.fields.items() if kind in ISO_FORMS]
        digits = [repr(name) for name, kind in self.fields.items() if kind is FieldKind.DIGITS]
        lines = []
        if cast:
            lines.append(f"the fields {', '.join(cast)} are ISO 8601 and cast; other text is null there, see value")
        if digits:
            lines.append(f"the fields {', '.join(digits)} have numbers that no type holds exactly: they are text")
        return lines


@dataclass(slots=True)
class _Seen:
    """The values of one field that were seen.

    Attributes:
        kinds: FieldKind.NUMBER for every number, FieldKind.TEXT for text without one of the forms of ISO 8601.
        is_long: every number is whole, and has 64 bits.
        is_whole: every number is whole.
        is_double: a double holds every number.
        is_plain: no number has an exponent.
        whole_digits: the most in front of a point.
        scale: the most after a point.
    """

    kinds: set[FieldKind] = field(default_factory=set)
    is_long: bool = True
    is_whole: bool = True
    is_double: bool = True
    is_plain: bool = True
    whole_digits: int = 0
    scale: int = 0

    def add(self, value: Any) -> None:
        """Take down what a value is; null is of no kind, wherever it comes."""
        if isinstance(value, JsonNumber):
            self.kinds.add(FieldKind.NUMBER)
            self._add_number(value)
        elif isinstance(value, bool):
            self.kinds.add(FieldKind.TRUTH)
        elif isinstance(value, str):
            self.kinds.add(form_of(value))
        elif value is not None:
            self.kinds.add(FieldKind.JSON)

    def _add_number(self, number: str) -> None:
        whole, _, fraction = number.removeprefix("-").partition(".")
        is_plain = not {*"eE"} & {*number}
        is_whole = is_plain and not fraction
        self.is_plain &= is_plain
        self.is_whole &= is_whole
        self.is_long &= is_whole and (
            len(whole) < 19 or (len(whole) == 19 and -_LONG_MAX - 1 <= int(number) <= _LONG_MAX)
        )
        self.is_double &= is_double(number)
        self.whole_digits = max(self.whole_digits, len(whole))
        self.scale = max(self.scale, len(fraction))

    def kind(self) -> FieldKind:
        """Return what all of that is; what was only ever null is text."""
        if not self.kinds:
            return FieldKind.TEXT
        if len(self.kinds) > 1:
            return FieldKind.TEXT if self.kinds <= {FieldKind.TEXT, *ISO_FORMS} else FieldKind.JSON
        (kind,) = self.kinds
        if kind is not FieldKind.NUMBER or self.is_long:
            return FieldKind.WHOLE if kind is FieldKind.NUMBER else kind
        if self.is_whole:
            return FieldKind.HUGE if self.whole_digits <= DECIMAL_DIGITS else FieldKind.DIGITS
        if self.is_double:
            return FieldKind.NUMBER
        fits = self.is_plain and self.whole_digits + self.scale <= DECIMAL_DIGITS
        return FieldKind.DECIMAL if fits else FieldKind.DIGITS


def is_double(number: str) -> bool:
    """Whether a double holds a number: the shortest text of the double has the same significant digits."""
    if len(number) <= SHORT_CHARS and not {*"eE"} & {*number}:
        return True
    double = float(number)
    return math.isfinite(double) and _digits(number) == _digits(repr(double))


def _digits(number: str) -> str:
    mantissa = number.lower().partition("e")[0]
    return "".join(filter(str.isdecimal, mantissa)).strip("0")


def form_of(text: str) -> FieldKind:
    """Return which of the forms of ISO 8601 a text has; TEXT for none, or where there is no such day or time."""
    for kind, form in ISO_FORMS.items():
        if re.fullmatch(form, text):
            try:
                datetime.fromisoformat(text)
            except ValueError:
                return FieldKind.TEXT
            return kind
    return FieldKind.TEXT


def shape_of(batches: Iterable[tuple[Iterable[bytes | None], Iterable[bytes | None]]], kind: ValueKind | None) -> Shape:
    """Return what a topic looks like whose records are like these; none of them is kept.

    Args:
        batches: of records, the keys and the values of each.
        kind: of the values; None to find out.
    """
    given = objects = 0
    text_keys = text_values = True
    seen: dict[str, _Seen] = {}
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
                for name, part in one.items():
                    seen.setdefault(name, _Seen()).add(part)
    if kind is None:
        other = ValueKind.TEXT if text_values else ValueKind.BYTES
        kind = ValueKind.JSON if given and objects == given else other
    fields, hidden = _columns(seen if kind is ValueKind.JSON else {})
    scales = {name: seen[name].scale for name, field in fields.items() if field is FieldKind.DECIMAL}
    return Shape(kind, text_keys, fields, tuple(hidden), scales)


def _columns(seen: Mapping[str, _Seen]) -> tuple[dict[str, FieldKind], list[str]]:
    """Return which of the fields become columns, and which do not."""
    taken = {name.lower() for name in RECORD_COLUMNS}
    fields: dict[str, FieldKind] = {}
    hidden: list[str] = []
    for name, one in seen.items():
        if name.lower() in taken or len(fields) == FIELDS_MAX or not name:
            hidden.append(name)
        else:
            taken.add(name.lower())
            fields[name] = one.kind()
    return fields, hidden


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine says things.

    Attributes:
        types: of columns; DECIMAL has a place for the scale.
        quote: quotes a name.
        matches: returns whether all of a text matches a regular expression without backslashes.
        digits: returns the digits of a number in front of its exponent, without zeros at the ends.
        whole: returns what is in front of a number's point.
        raises: the function that ends a statement with a message.
    """

    types: Mapping[FieldKind, str]
    quote: Callable[[str], str]
    matches: Callable[[str, str], str]
    digits: Callable[[str], str]
    whole: Callable[[str], str]
    raises: str


class SafeNumbers:
    """Numbers as strings in JSON that an engine parses; how a regular expression makes and unmakes them.

    A number follows what is no number, strings among it; the one that is appended ends every text, so that the
    expression never begins to match within a string.

    Attributes:
        mark: begins each of the strings: random, so that no record has it.
        appended: to the text in which numbers are replaced.
        end: what that becomes.
    """

    appended: Final = " 0"

    def __init__(self) -> None:
        self.mark = f"N{secrets.token_hex(16)}N"
        self.end = f' "{self.mark}0"'

    def replaced(self, text: str) -> str:
        """Return JSON with strings for numbers."""
        return _NUMBERS.sub(rf'\1"{self.mark}\2"', text + self.appended).removesuffix(self.end)


BEFORE_NUMBER: Final = r'[^-0-9"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^-0-9"]*)*'
JSON_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NUMBERS: Final = re.compile(f"({BEFORE_NUMBER})({JSON_NUMBER})", re.DOTALL)


def select_list(topic: str, shape: Shape, text_of: Callable[[str], str], dialect: Dialect) -> list[str]:
    """Return the expressions of a topic's columns over a table that has a record's, in SQL that both engines take.

    Args:
        topic: its name, for errors.
        shape: what it looks like.
        text_of: returns how the text of a field is reached: a number as it was written, a string's content, JSON of
            what has parts.
        dialect: of the engine.
    """
    quote = dialect.quote
    own = [quote(name) for name in ("partition", "offset", "timestamp", "key")]
    fields = [f"{_converted(topic, shape, name, text_of(name), dialect)} AS {quote(name)}" for name in shape.fields]
    return [*own, *fields, quote("value"), quote("headers"), quote("tag")]


def _converted(topic: str, shape: Shape, name: str, text: str, dialect: Dialect) -> str:
    """Return the expression that makes a column's value of a field's text."""
    kind, scale = shape.fields[name], shape.scales.get(name, 0)
    if kind in {FieldKind.TEXT, FieldKind.JSON, FieldKind.DIGITS}:
        return text
    if kind is FieldKind.TRUTH:
        return f"CASE {text} WHEN 'true' THEN TRUE WHEN 'false' THEN FALSE END"
    made_of = dialect.types[kind].format(scale=scale)
    cast = f"try_cast({text} AS {made_of})"
    if kind in ISO_FORMS:
        return f"CASE WHEN {dialect.matches(text, ISO_FORMS[kind])} THEN {cast} END"
    message = (
        f"{topic}: {name} is {made_of} by the sampled records, which does not hold every number exactly; use a larger "
        "--sample. Not held: "
    ).replace("'", "''").replace("\\", "")  # fmt: skip
    raised = f"CAST({dialect.raises}(concat('{message}', {text})) AS {made_of})"
    is_number = dialect.matches(text, NUMBER)
    if kind is FieldKind.NUMBER:
        short = f"length({text}) <= {SHORT_CHARS} AND {dialect.matches(text, '-?[0-9]+([.][0-9]+)?')}"
        same = f"{dialect.digits(text)} = {dialect.digits(f'CAST({cast} AS {dialect.types[FieldKind.TEXT]})')}"
        return f"CASE WHEN {short} THEN {cast} WHEN {is_number} THEN CASE WHEN {same} THEN {cast} ELSE {raised} END END"
    fraction = f"([.][0-9]{{0,{scale}}}0*)?" if kind is FieldKind.DECIMAL else "([.]0+)?"
    whole = cast if kind is FieldKind.DECIMAL else f"try_cast({dialect.whole(text)} AS {made_of})"
    fits = dialect.matches(text, f"-?[0-9]{{1,{DECIMAL_DIGITS}}}{fraction}")
    return f"CASE WHEN {fits} THEN coalesce({whole}, {raised}) WHEN {is_number} THEN {raised} END"


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        one = exact_json(value)
    except ValueError:
        return None
    return one if isinstance(one, dict) else None


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
