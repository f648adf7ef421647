"""Records as lines of JSON: what `consume --json` and `log dump` print, and `produce --format records` takes.

The fields are those of HTTP. Bytes that are UTF-8 are given as text; others as base64, with `key_encoding` or
`value_encoding` saying so. A value that is a JSON object or array is printed as such, with `"value_encoding": "json"`;
whatever else happens to be JSON (`42`, `true`) stays the text that it is, which reads the same and comes back byte for
byte. What was printed as JSON comes back with the same content, but not always with the same white space: `ValueForm`
TEXT and BASE64 keep every byte.
"""

from __future__ import annotations

import base64
import json
import math
from enum import StrEnum
from typing import Any, NoReturn

from tidelog_proto.record import Record


class ValueForm(StrEnum):
    """How a value is printed."""

    JSON = "json"
    TEXT = "text"
    BASE64 = "base64"


def record_line(record: Record, topic: str, partition: int, form: ValueForm = ValueForm.JSON) -> str:
    """Return a record of a partition as one line of JSON, without the newline."""
    document: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_us // 1000,
    }
    _put(document, "key", record.key, ValueForm.TEXT)
    _put(document, "value", record.value, form)
    if record.headers:
        document["headers"] = [_header(name, value) for name, value in record.headers]
    if record.tag is not None:
        document["tag"] = record.tag
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def strict_json(text: bytes | str) -> Any:
    """Return what JSON says; `NaN` and `Infinity`, which Python takes for it, are none.

    Raises:
        ValueError: it is no JSON, or nested too deeply to be looked at.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def finite(value: Any) -> Any:
    """Return a value with null for each number that JSON has no form for: NaN and the infinities."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: finite(member) for name, member in value.items()}
        case list() | tuple():
            return [finite(member) for member in value]
        case _:
            return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _put(document: dict[str, Any], field: str, content: bytes | None, form: ValueForm) -> None:
    document[field], encoding = _shown(content, form)
    if encoding:
        document[f"{field}_encoding"] = encoding


def _header(name: str, value: bytes | None) -> list[Any]:
    shown, encoding = _shown(value, ValueForm.TEXT)
    return [name, shown, encoding] if encoding else [name, shown]


def _shown(content: bytes | None, form: ValueForm) -> tuple[Any, str | None]:
    """Return what is printed for bytes, and the encoding where it is no plain text."""
    if content is None:
        return None, None
    if form is ValueForm.JSON and content[:1] in {b"{", b"["}:
        try:
            return _writable(strict_json(content)), "json"
        except ValueError:
            pass  # looks like JSON, and is text
    if form is not ValueForm.BASE64:
        try:
            return content.decode(), None
        except UnicodeDecodeError:
            pass  # bytes that are no text are base64 whatever was asked for
    return base64.b64encode(content).decode(), "base64"


def _writable(document: Any) -> Any:
    """Return `document` if UTF-8 can say it.

    Raises:
        ValueError: it has half of a surrogate pair in it, or a number that is too large (1e999).
    """
    json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    return document
