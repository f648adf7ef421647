"""Columns of a topic as a SQL table: those of a record, and one for each field of JSON values.

The kind of the values is detected from a sample of records, unless `--values` sets it:

    json    more than half are JSON objects; each field is a column, and the whole value is text
    text    all are UTF-8
    bytes   anything else

`tidelog_proto.text.json_text` defines JSON for both engines. A field gets a type that represents the sampled values
exactly, see `FieldKind`; nested values, or values of several kinds, are shown as JSON text. A value of another kind is
null in its column and reported; the column `value` has all of it. A number that the type would round is an error.

Engines parse JSON numbers as doubles. So each number is passed to the engine as a string with a random prefix
(`SafeNumbers`), and SQL that both engines support converts the digits to the column's type (`select_list`).
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

from tidelog_proto.text.json_text import JsonNumber, exact_json

RECORD_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers", "tag")
FIELDS_MAX: Final = 1000
"""Largest number of fields of JSON values that become columns."""
DECIMAL_DIGITS: Final = 38
"""Digits of the widest exact numeric type that both engines have."""
FRACTION_DIGITS_MAX: Final = 9
"""Fractions of at most this many digits are DECIMAL; longer ones are DOUBLE, because they are usually computed."""
WHOLE_DIGITS: Final = 18
"""Digits before the decimal point of a DECIMAL column with a short fraction, so that sums fit `DECIMAL_DIGITS`."""
SHORT_CHARS: Final = 15
"""A double represents any number of at most this many characters without an exponent."""
NUMBER: Final = "-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?"
"""A JSON number as a regular expression without backslashes, which engines interpret differently."""
_LONG_MAX: Final = (1 << 63) - 1
_DAY: Final = "[0-9]{4}-[01][0-9]-[0-3][0-9]"
_TIME: Final = _DAY + "[T ][0-2][0-9]:[0-5][0-9](:[0-5][0-9]([.][0-9]{1,6})?)?"


class ValueKind(StrEnum):
    """Kind of a topic's values."""

    JSON = "json"
    TEXT = "text"
    BYTES = "bytes"


class FieldKind(StrEnum):
    """Kind of a field of JSON values."""

    INTEGER = "integer"
    """Whole numbers of 64 bits."""
    LONG_INTEGER = "long integer"
    """Whole numbers of up to 38 digits."""
    DECIMAL = "decimal"
    """Numbers with a short fraction, and numbers of up to 38 digits that a double would round; without exponents."""
    NUMBER = "number"
    """Other numbers that a double represents: its shortest text has the same significant digits."""
    DIGITS = "digits"
    """Numbers that no type represents, as text."""
    BOOLEAN = "boolean"
    """true and false."""
    DATE = "date"
    """Days, as in 2026-01-31."""
    TIME = "time"
    """Date and time without a zone, to the microsecond."""
    ZONED_TIME = "zoned time"
    """Date and time with an offset from UTC, to the microsecond."""
    TEXT = "text"
    """Other text."""
    JSON = "json"
    """Lists, objects and mixtures of kinds, as their JSON text."""


ISO_FORMS: Final = {
    FieldKind.DATE: _DAY,
    FieldKind.TIME: _TIME,
    FieldKind.ZONED_TIME: _TIME + "(Z|[-+][01][0-9]:[0-5][0-9])",
}
"""Formats of dates and times (ISO 8601), as regular expressions without backslashes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Detected columns of a topic.

    Attributes:
        values: kind of the values.
        text_keys: whether all sampled keys are UTF-8.
        fields: fields of JSON values that become columns, by name.
        hidden: fields that do not become columns, because a column has their name or there are too many fields.
        decimals: precision and scale of DECIMAL fields.
        sampled: number of sampled values; 0 if no value was parsed.
        others: number of sampled values that are not JSON objects.
    """

    values: ValueKind
    text_keys: bool
    fields: dict[str, FieldKind]
    hidden: tuple[str, ...] = ()
    decimals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    sampled: int = 0
    others: int = 0

    def told(self) -> list[str]:
        """Return notes about columns that differ from the JSON values."""
        digits = [repr(name) for name, kind in self.fields.items() if kind is FieldKind.DIGITS]
        lines = []
        if self.values is ValueKind.JSON and self.others:
            lines.append(
                f"{self.others:,} of {self.sampled:,} sampled values are not JSON objects: all fields of such a record "
                "are null, see column value"
            )
        if digits:
            lines.append(
                f"the fields {', '.join(digits)} have numbers that no type represents exactly, so they are text"
            )
        return lines

    def missing_fields(self, topic: str) -> str:
        """Return why fields of the topic's JSON objects are not columns, and the remedy.

        Empty if they are columns, or if no sampled value is a JSON object.
        """
        if self.values is ValueKind.JSON or self.others == self.sampled:
            return ""
        return (
            f"fields are not columns of {topic}, because {self.others:,} of its {self.sampled:,} sampled values are "
            f"not JSON objects; use --values {topic}=json, which reads the fields of such a record as null"
        )


@dataclass(slots=True)
class _Seen:
    """Summary of the sampled values of one field.

    Attributes:
        kinds: FieldKind.NUMBER for every number, FieldKind.TEXT for text that is not ISO 8601.
        is_long: whether every number is an integer of 64 bits.
        is_whole: whether every number is an integer.
        is_double: whether a double represents every number.
        is_plain: whether no number has an exponent.
        whole_digits: most digits before the decimal point.
        scale: most digits after the decimal point.
    """

    kinds: set[FieldKind] = field(default_factory=set)
    is_long: bool = True
    is_whole: bool = True
    is_double: bool = True
    is_plain: bool = True
    whole_digits: int = 0
    scale: int = 0

    def add(self, value: Any) -> None:
        """Add a value; nulls are ignored."""
        if isinstance(value, JsonNumber):
            self.kinds.add(FieldKind.NUMBER)
            self._add_number(value)
        elif isinstance(value, bool):
            self.kinds.add(FieldKind.BOOLEAN)
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
        """Return the kind for all added values; TEXT if all were null."""
        if not self.kinds:
            return FieldKind.TEXT
        if len(self.kinds) > 1:
            return FieldKind.TEXT if self.kinds <= {FieldKind.TEXT, *ISO_FORMS} else FieldKind.JSON
        (kind,) = self.kinds
        if kind is not FieldKind.NUMBER or self.is_long:
            return FieldKind.INTEGER if kind is FieldKind.NUMBER else kind
        if self.is_whole:
            return FieldKind.LONG_INTEGER if self.whole_digits <= DECIMAL_DIGITS else FieldKind.DIGITS
        if self._is_short:
            return FieldKind.DECIMAL
        if self.is_double:
            return FieldKind.NUMBER
        fits = self.is_plain and self.whole_digits + self.scale <= DECIMAL_DIGITS
        return FieldKind.DECIMAL if fits else FieldKind.DIGITS

    def decimal(self) -> tuple[int, int]:
        """Return the precision and the scale of a DECIMAL field."""
        return WHOLE_DIGITS + self.scale if self._is_short else DECIMAL_DIGITS, self.scale

    @property
    def _is_short(self) -> bool:
        return self.is_plain and self.whole_digits <= WHOLE_DIGITS and self.scale <= FRACTION_DIGITS_MAX


def is_double(number: str) -> bool:
    """Return whether a double represents a number: its shortest text has the same significant digits."""
    if len(number) <= SHORT_CHARS and not {*"eE"} & {*number}:
        return True
    double = float(number)
    return math.isfinite(double) and _digits(number) == _digits(repr(double))


def _digits(number: str) -> str:
    mantissa = number.lower().partition("e")[0]
    return "".join(filter(str.isdecimal, mantissa)).strip("0")


def form_of(text: str) -> FieldKind:
    """Return the ISO 8601 format of a text; TEXT if it has another format, or is an invalid date or time."""
    for kind, form in ISO_FORMS.items():
        if re.fullmatch(form, text):
            try:
                datetime.fromisoformat(text)
            except ValueError:
                return FieldKind.TEXT
            return kind
    return FieldKind.TEXT


def shape_of(batches: Iterable[tuple[Iterable[bytes | None], Iterable[bytes | None]]], kind: ValueKind | None) -> Shape:
    """Return the columns of a topic from sampled records, in bounded memory.

    Args:
        batches: the keys and the values of each batch of records.
        kind: kind of the values; None to detect it.
    """
    is_parsed = kind in {ValueKind.JSON, None}
    non_null = objects = 0
    text_keys = text_values = True
    summaries: dict[str, _Seen] = {}
    for keys, values in batches:
        text_keys = text_keys and all(_is_text(key) for key in keys if key is not None)
        for value in values:
            if value is None:
                continue
            one = _object(value) if is_parsed else None
            non_null += 1
            text_values = text_values and (kind is not None or _is_text(value))
            if one is not None:
                objects += 1
                for name, part in one.items():
                    summaries.setdefault(name, _Seen()).add(part)
    if kind is None:
        other = ValueKind.TEXT if text_values else ValueKind.BYTES
        kind = ValueKind.JSON if 2 * objects > non_null else other
    fields, hidden = _columns(summaries if kind is ValueKind.JSON else {})
    decimals = {name: summaries[name].decimal() for name, field in fields.items() if field is FieldKind.DECIMAL}
    sampled, others = (non_null, non_null - objects) if is_parsed else (0, 0)
    return Shape(kind, text_keys, fields, tuple(hidden), decimals, sampled, others)


def _columns(summaries: Mapping[str, _Seen]) -> tuple[dict[str, FieldKind], list[str]]:
    """Return the fields that become columns, and the hidden ones."""
    reserved = {name.lower() for name in RECORD_COLUMNS}
    fields: dict[str, FieldKind] = {}
    hidden: list[str] = []
    for name, one in summaries.items():
        if name.lower() in reserved or len(fields) == FIELDS_MAX or not name:
            hidden.append(name)
        else:
            reserved.add(name.lower())
            fields[name] = one.kind()
    return fields, hidden


@dataclass(frozen=True, slots=True)
class Dialect:
    """The notation of types and expressions in the SQL of one engine.

    Attributes:
        types: column types; DECIMAL has placeholders for its precision and scale.
        quote: quotes a name.
        matches: expression for whether a whole text matches a regular expression without backslashes.
        digits: expression for the digits of a number before its exponent, without leading and trailing zeros.
        whole: expression for the part of a number before its decimal point.
        raises: the function that fails with a message.
        reports: expression that is null, and reports a topic, a field, its column's type and a text that the column
            cannot represent.
    """

    types: Mapping[FieldKind, str]
    quote: Callable[[str], str]
    matches: Callable[[str, str], str]
    digits: Callable[[str], str]
    whole: Callable[[str], str]
    raises: str
    reports: Callable[[str, str, str, str], str]


class SafeNumbers:
    """Replaces numbers in JSON by strings, with a regular expression, before an engine parses the JSON.

    The SQL of each engine removes the mark from the parsed strings again.

    The expression matches everything before a number, including strings, and then the number. A number is appended to
    each text, so that the expression never starts to match inside a string.

    Attributes:
        mark: random prefix of the strings, so that no record contains it.
        appended: the number that is appended to the text.
        end: the string that replaces the appended number.
    """

    appended: Final = " 0"

    def __init__(self) -> None:
        self.mark = f"N{secrets.token_hex(16)}N"
        self.end = f' "{self.mark}0"'

    def replaced(self, text: str) -> str:
        """Return JSON in which strings replace numbers."""
        return _NUMBERS.sub(rf'\1"{self.mark}\2"', text + self.appended).removesuffix(self.end)


BEFORE_NUMBER: Final = r'[^-0-9"]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^-0-9"]*)*'
JSON_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_NUMBERS: Final = re.compile(f"({BEFORE_NUMBER})({JSON_NUMBER})", re.DOTALL)


def select_list(
    topic: str, shape: Shape, text_of: Callable[[str], str], dialect: Dialect, *, raises: bool = True
) -> list[str]:
    """Return the expressions of a topic's columns over a table of records, in SQL that both engines support.

    Args:
        raises: whether a number that its column does not hold exactly is an error, and not null.
        text_of: returns the expression of a field's text: a number as written, the content of a string, JSON of nested
            values.
    """
    quote = dialect.quote
    own = [quote(name) for name in ("partition", "offset", "timestamp", "key")]
    fields = [
        f"{_converted(topic, shape, name, text_of(name), dialect, raises)} AS {quote(name)}" for name in shape.fields
    ]
    return [*own, *fields, quote("value"), quote("headers"), quote("tag")]


def _converted(topic: str, shape: Shape, name: str, text: str, dialect: Dialect, raises: bool) -> str:  # noqa: PLR0917 - the arguments of `select_list`
    """Return the expression that converts a field's text to its column's type."""
    kind = shape.fields[name]
    precision, scale = shape.decimals.get(name, (DECIMAL_DIGITS, 0))
    if kind in {FieldKind.TEXT, FieldKind.JSON, FieldKind.DIGITS}:
        return text
    made_of = dialect.types[kind].format(precision=precision, scale=scale)
    other = f"WHEN {text} IS NOT NULL THEN CAST({dialect.reports(topic, name, made_of, text)} AS {made_of}) END"
    if kind is FieldKind.BOOLEAN:
        return f"CASE WHEN {text} = 'true' THEN TRUE WHEN {text} = 'false' THEN FALSE {other}"
    cast = f"try_cast({text} AS {made_of})"
    if kind in ISO_FORMS:
        parsed = f"CASE WHEN {dialect.matches(text, ISO_FORMS[kind])} THEN {cast} END"
        return f"coalesce({parsed}, CASE {other})"
    message = (
        f"{topic}: {name} is {made_of} according to the sampled records, and this type does not represent every number "
        "exactly; use a larger --sample. Number: "
    ).replace("'", "''").replace("\\", "")  # fmt: skip
    raised = f"CAST({dialect.raises}(concat('{message}', {text})) AS {made_of})"
    if not raises:
        raised = f"CAST({dialect.reports(topic, name, made_of, text)} AS {made_of})"
    is_number = dialect.matches(text, NUMBER)
    if kind is FieldKind.NUMBER:
        short = f"length({text}) <= {SHORT_CHARS} AND {dialect.matches(text, '-?[0-9]+([.][0-9]+)?')}"
        same = f"{dialect.digits(text)} = {dialect.digits(f'CAST({cast} AS {dialect.types[FieldKind.TEXT]})')}"
        number = f"CASE WHEN {same} THEN {cast} ELSE {raised} END"
        return f"CASE WHEN {short} THEN {cast} WHEN {is_number} THEN {number} {other}"
    fraction = f"([.][0-9]{{0,{scale}}}0*)?" if kind is FieldKind.DECIMAL else "([.]0+)?"
    whole = cast if kind is FieldKind.DECIMAL else f"try_cast({dialect.whole(text)} AS {made_of})"
    fits = dialect.matches(text, f"-?[0-9]{{1,{DECIMAL_DIGITS}}}{fraction}")
    return f"CASE WHEN {fits} THEN coalesce({whole}, {raised}) WHEN {is_number} THEN {raised} {other}"


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
