"""Records as lines of JSON: what `consume --json` and `log dump` print, and `produce --format records` takes.

The fields are those of HTTP. Bytes that are UTF-8 are given as text; others as base64, with `key_encoding` or
`value_encoding` saying so. A value that is a JSON object or array is printed as such, byte for byte, with
`"value_encoding": "json"`. Whatever else happens to be JSON (`42`, `true`) stays the text that it is, and so does a
document with line breaks between its tokens, which would end the line. Each form comes back with every byte.
"""

from __future__ import annotations

import base64
import json
import math
from enum import StrEnum
from typing import Any

from tidelog_proto.batch.record import Record
from tidelog_proto.text.json_text import json_text


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
    _put(document, "key", record.key)
    raw = _raw_json(record.value) if form is ValueForm.JSON else None
    before = "" if raw is None else f'{_dumped(document)[:-1]}, "value": {raw}, '
    if raw is None:
        _put(document, "value", record.value, as_text=form is not ValueForm.BASE64)
    else:
        document = {"value_encoding": "json"}
    if record.headers:
        document["headers"] = [_header(name, value) for name, value in record.headers]
    if record.tag is not None:
        document["tag"] = record.tag
    return before + (_dumped(document) if raw is None else _dumped(document)[1:])


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


def _dumped(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def _raw_json(content: bytes | None) -> str | None:
    """Return a JSON object or array that fits a line as it is; None for what is neither."""
    if content is None or content[:1] not in {b"{", b"["} or b"\n" in content or b"\r" in content:
        return None
    try:
        return json_text(content)
    except ValueError:
        return None  # looks like JSON, and is text


def _put(document: dict[str, Any], field: str, content: bytes | None, *, as_text: bool = True) -> None:
    document[field], encoding = _shown(content, as_text=as_text)
    if encoding:
        document[f"{field}_encoding"] = encoding


def _header(name: str, value: bytes | None) -> list[Any]:
    shown, encoding = _shown(value)
    return [name, shown, encoding] if encoding else [name, shown]


def _shown(content: bytes | None, *, as_text: bool = True) -> tuple[str | None, str | None]:
    """Return what is printed for bytes, and the encoding where it is no plain text."""
    if content is None:
        return None, None
    if as_text:
        try:
            return content.decode(), None
        except UnicodeDecodeError:
            pass  # bytes that are no text are base64 whatever was asked for
    return base64.b64encode(content).decode(), "base64"
