"""One record as the JSON object that `consume --json` prints, the same fields as over HTTP.

Bytes that are UTF-8 are given as text; others as base64, with `key_encoding` or `value_encoding` saying so.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from tidelog import Record


def record_line(record: Record) -> str:
    """Return the record as one line of JSON, without the newline."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_us // 1000,
    }
    _put_bytes(document, "key", record.key)
    _put_bytes(document, "value", record.value)
    if record.headers:
        document["headers"] = [[name, _text_or_base64(value)] for name, value in record.headers]
    if record.tag is not None:
        document["tag"] = record.tag
    return json.dumps(document, ensure_ascii=False)


def _put_bytes(document: dict[str, Any], field: str, content: bytes | None) -> None:
    if content is None:
        document[field] = None
        return
    try:
        document[field] = content.decode()
    except UnicodeDecodeError:
        document[field] = base64.b64encode(content).decode()
        document[f"{field}_encoding"] = "base64"


def _text_or_base64(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()
