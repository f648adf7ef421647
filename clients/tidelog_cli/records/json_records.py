"""Parser of JSON lines for `produce --format records`, see `tidelog_proto.text.record_lines`."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from tidelog_cli.base.failures import CommandFailed
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.limits import TIMESTAMP_MS_MAX
from tidelog_proto.text.base64_text import from_base64
from tidelog_proto.text.json_text import checked_json, member_text

_READ_FIELDS: Final = frozenset(
    {"key", "key_encoding", "value", "value_encoding", "headers", "tag", "timestamp_ms", "topic", "partition", "offset"}
)
"""Fields of a JSON record. Its position (topic, partition, offset) is accepted and ignored, because a published record
gets another one."""
_MILLISECONDS: Final = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?", re.ASCII)


def records_of(lines: Sequence[bytes], first_line: int) -> pa.RecordBatch | None:
    """Parse lines of JSON into record columns; return None if all lines are blank.

    Args:
        lines: one record each, as `record_line` writes it.
        first_line: the number of the first line, for errors.

    Raises:
        CommandFailed: a line is not a record; the message has its number and the cause.
    """
    read = [
        _read(line, f"line {number}") for number, line in enumerate(lines, first_line) if line and not line.isspace()
    ]
    if not read:
        return None
    now_us = time.time_ns() // 1000
    stamps = [one["timestamp_us"] for one in read]
    timed = any(stamp is not None for stamp in stamps)
    return columns_of(
        [one["value"] for one in read],
        keys=[one["key"] for one in read],
        headers=[one["headers"] for one in read] if any(one["headers"] for one in read) else None,
        tags=[one["tag"] for one in read] if any(one["tag"] is not None for one in read) else None,
        timestamps_us=[now_us if stamp is None else stamp for stamp in stamps] if timed else None,
    )


# --- reading -------------------------------------------------------------------------------------------


def _read(line: bytes, where: str) -> dict[str, Any]:
    try:
        text, document = checked_json(line, around=1)
    except ValueError as error:
        raise CommandFailed(f"{where} is not JSON: {error}") from error
    if not isinstance(document, dict) or "value" not in document:
        raise CommandFailed(f'{where} is not a record: give a JSON object with a "value" (null for a tombstone)')
    if unknown := document.keys() - _READ_FIELDS:
        raise CommandFailed(
            f"{where}: unknown field {min(unknown)!r}; the fields are {', '.join(sorted(_READ_FIELDS))}"
        )
    try:
        return {
            "key": _bytes_of("key", document.get("key"), document.get("key_encoding", "utf8")),
            "value": _value_of(document, text),
            "headers": [_header_of(header) for header in _of(list, document.get("headers") or [], "headers")],
            "tag": None if document.get("tag") is None else _of(str, document["tag"], "tag"),
            "timestamp_us": None if document.get("timestamp_ms") is None else _timestamp_us_of(text),
        }
    except ValueError as error:
        raise CommandFailed(f"{where}: {error}") from error


def _value_of(document: dict[str, Any], text: str) -> bytes | None:
    """Return the value's bytes; for JSON the exact text of the member. Null is a tombstone in every encoding."""
    encoding = document.get("value_encoding", "utf8")
    if encoding != "json" or document["value"] is None:
        return _bytes_of("value", document["value"], "utf8" if encoding == "json" else encoding)
    return member_text(text, "value").encode()


def _bytes_of(name: str, text: Any, encoding: Any) -> bytes | None:
    if encoding not in ("utf8", "base64"):
        raise ValueError(f"unknown encoding {encoding!r} of the {name}; use utf8, base64 or, for values, json")
    if text is None:
        return None
    if not isinstance(text, str):
        remedy = 'give a string, or set "value_encoding": "json"' if name == "value" else "give a string"
        raise ValueError(f"the {name} {text!r} is not text: {remedy}")  # noqa: TRY004 - a fault of the input
    if encoding == "utf8":
        return text.encode()
    try:
        return from_base64(text)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from error


def _header_of(header: Any) -> tuple[str, bytes | None]:
    if not isinstance(header, list) or len(header) not in {2, 3} or not isinstance(header[0], str):
        raise ValueError(f'{header!r} is not a header: give ["name", "value"] or ["name", "value", "base64"]')
    return header[0], _bytes_of(f"header {header[0]!r}", header[1], header[2] if len(header) == 3 else "utf8")


def _timestamp_us_of(text: str) -> int:
    """Return the time of a record's text, whose number of milliseconds may have up to three digits after the point."""
    stamp = member_text(text, "timestamp_ms")
    number = _MILLISECONDS.fullmatch(stamp)
    stamp_us = int(number[1]) * 1000 + int((number[2] or "").ljust(3, "0")) if number else -1
    if not 0 <= stamp_us < (TIMESTAMP_MS_MAX + 1) * 1000:
        raise ValueError(
            f"{stamp} is not a timestamp_ms: give milliseconds since 1970, up to the year 9999, with at most three "
            "digits after the point"
        )
    return stamp_us


def _of(kind: type, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "a string"
        raise ValueError(f"{name} must be {wanted}, got {value!r}")  # noqa: TRY004 - a fault of the input
    return value
