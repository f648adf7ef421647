"""A publish of one record: the body is the value, and query parameters are the other fields."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_gateway.problems import invalid
from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.requests.parameters import KeyEncoding, parse_key
from tidelog_proto.limits import TAG_BYTES_MAX
from tidelog_proto.text.base64_text import from_url_base64


def raw_record(
    body: bytes,
    *,
    key: str | None,
    key_encoding: KeyEncoding,
    tag: str | None,
    partition: int | None,
    timestamp_ms: int | None,
    headers: Sequence[str],
) -> Records:
    """Return the only record of a request.

    Args:
        body: the record's value; an empty body is an empty value.
        key: the record's key, as text or in base64.
        headers: the record's headers, each NAME:VALUE or NAME:base64:VALUE.

    Raises:
        Problem: 422.
    """
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        detail = f"a tag has at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}"
        raise invalid([{"parameter": "tag", "detail": detail}])
    return Records(
        [body],
        keys=None if key is None else [parse_key(key, key_encoding)],
        headers=[[_header(text) for text in headers]] if headers else None,
        tags=None if tag is None else [tag],
        partitions=None if partition is None else [partition],
        timestamps_us=None if timestamp_ms is None else [timestamp_ms * 1000],
    )


def _header(text: str) -> tuple[str, bytes | None]:
    name, colon, value = text.partition(":")
    if not colon or not name:
        raise invalid(
            [
                {
                    "parameter": "header",
                    "detail": f"must be NAME:VALUE, or NAME:base64:VALUE for bytes, got {text[:40]!r}",
                }
            ]
        )
    if not value.startswith("base64:"):
        return name, value.encode()
    try:
        # As in `key`: `-` and `_` need no percent-encoding in a URL.
        return name, from_url_base64(value[7:])
    except ValueError as error:
        raise invalid([{"parameter": "header", "detail": f"header {name}: {error}"}]) from error
