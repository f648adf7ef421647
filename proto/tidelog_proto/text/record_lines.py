"""Records as lines of JSON: printed by `consume --json` and `log dump`, read by `produce --format records`.

The fields are those of the HTTP API. Bytes that are valid UTF-8 are shown as text, others as base64, marked by
`key_encoding` or `value_encoding`. A JSON object or array without line breaks is embedded byte for byte, with
`"value_encoding": "json"`. Other JSON values (`42`, `true`) are shown as text. A timestamp of whole milliseconds is an
integer, another one a decimal number with up to three digits after the point. Every form is lossless.
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
    position = _members({"topic": topic, "partition": partition, "offset": record.offset})
    members = [position, f'"timestamp_ms": {milliseconds_text(record.timestamp_us)}']
    document: dict[str, Any] = {}
    _put(document, "key", record.key)
    if (raw := _raw_json(record.value) if form is ValueForm.JSON else None) is not None:
        members += [_members(document), f'"value": {raw}']
        document = {"value_encoding": "json"}
    else:
        _put(document, "value", record.value, as_text=form is not ValueForm.BASE64)
    if record.headers:
        document["headers"] = [_header(name, value) for name, value in record.headers]
    if record.tag is not None:
        document["tag"] = record.tag
    return f"{{{', '.join([*members, _members(document)])}}}"


def milliseconds_text(timestamp_us: int) -> str:
    """Return a time in microseconds as the exact JSON number of its milliseconds, such as 1500 or 1500.25."""
    whole, rest = divmod(timestamp_us, 1000)
    return f"{whole}.{rest:03}".rstrip("0") if rest else str(whole)


def finite(value: Any) -> Any:
    """Return a value in which null replaces each NaN and infinity, which JSON cannot represent."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: finite(member) for name, member in value.items()}
        case list() | tuple():
            return [finite(member) for member in value]
        case _:
            return value


def _members(document: dict[str, Any]) -> str:
    """Return the members of an object as JSON, without its braces."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False)[1:-1]


def _raw_json(content: bytes | None) -> str | None:
    """Return a JSON object or array that fits on one line, unchanged; None for any other content."""
    if content is None or content[:1] not in {b"{", b"["} or b"\n" in content or b"\r" in content:
        return None
    try:
        return json_text(content)
    except ValueError:
        return None  # The text begins like JSON but is not JSON.


def _put(document: dict[str, Any], field: str, content: bytes | None, *, as_text: bool = True) -> None:
    document[field], encoding = _shown(content, as_text=as_text)
    if encoding:
        document[f"{field}_encoding"] = encoding


def _header(name: str, value: bytes | None) -> list[Any]:
    text, encoding = _shown(value)
    return [name, text, encoding] if encoding else [name, text]


def _shown(content: bytes | None, *, as_text: bool = True) -> tuple[str | None, str | None]:
    """Return the shown form of bytes, and its encoding unless it is plain text."""
    if content is None:
        return None, None
    if as_text:
        try:
            return content.decode(), None
        except UnicodeDecodeError:
            pass  # Bytes that are not UTF-8 are always shown as base64.
    return base64.b64encode(content).decode(), "base64"
