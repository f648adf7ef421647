"""Fast path for JSON bodies whose values are text: msgspec decodes and validates them without pydantic's objects.

Other bodies (with a fault, values of other JSON types, headers, or a possibly repeated member) are parsed by
`json_decoding`, so that faults are reported and values interpreted in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from tidelog_gateway.records.json_decoding import Records
from tidelog_gateway.requests.repeated_members import has_strings_alone, may_repeat
from tidelog_proto.limits import PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX
from tidelog_proto.text.base64_text import from_base64

_Item = TypeVar("_Item")
_PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
_TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)]


class _PlainRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str | None
    # A missing member is UNSET, not null: `may_repeat` encodes the record again and compares its members with the text.
    key: str | UnsetType | None = UNSET
    value_encoding: Literal["utf8", "base64"] | UnsetType = UNSET
    key_encoding: Literal["utf8", "base64"] | UnsetType = UNSET
    tag: str | UnsetType | None = UNSET
    partition: _PartitionNumber | UnsetType | None = UNSET
    timestamp_ms: _TimestampMs | UnsetType | None = UNSET


class _ValueRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str


class _KeyedRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str
    key: str


class _ValueBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    records: Annotated[list[_ValueRecord], msgspec.Meta(min_length=1)]


class _KeyedBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    records: Annotated[list[_KeyedRecord], msgspec.Meta(min_length=1)]


class _PlainBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    records: Annotated[list[_PlainRecord], msgspec.Meta(min_length=1)]


_VALUE_BODIES: Final = msgspec.json.Decoder(_ValueBody)
_KEYED_BODIES: Final = msgspec.json.Decoder(_KeyedBody)
_BODIES: Final = msgspec.json.Decoder(_PlainBody)
_LINES: Final = msgspec.json.Decoder(_PlainRecord)


def plain_records(body: bytes, *, records_max: int, now_us: Callable[[], int]) -> Records | None:
    """Return the records of a body; None if it needs the general parser.

    Args:
        now_us: returns the timestamp of records without a timestamp, if other records have one.
    """
    for read in (_value_records, _keyed_records):
        try:
            records = read(body)
        except ValueError:  # Decoding stops at the first record with other members.
            continue
        return records if records is not None and len(records) <= records_max else None
    try:
        decoded = _BODIES.decode(body)
        if len(decoded.records) > records_max or may_repeat(body, decoded):
            return None
        return _lists_of(decoded.records, now_us)
    except ValueError:  # msgspec raises subclasses of it
        return None


def _value_records(body: bytes) -> Records | None:
    """Return records with a value only; None if a member may be repeated.

    Raises:
        ValueError: a record has other members, or the body is not JSON.
    """
    decoded = _VALUE_BODIES.decode(body)
    # The strings are the name "records", and a name and a value in each record.
    if not has_strings_alone(body, 1 + 2 * len(decoded.records)) and may_repeat(body, decoded):
        return None
    return Records([record.value.encode() for record in decoded.records])


def _keyed_records(body: bytes) -> Records | None:
    """Return records with a value and a key; see `_value_records`."""
    decoded = _KEYED_BODIES.decode(body)
    records = decoded.records
    if not has_strings_alone(body, 1 + 4 * len(records)) and may_repeat(body, decoded):
        return None
    return Records([record.value.encode() for record in records], keys=[record.key.encode() for record in records])


def plain_lines(lines: Sequence[bytes], *, now_us: Callable[[], int]) -> Records | None:
    """Return the records of lines with one record each; see `plain_records`."""
    decode = _LINES.decode
    try:
        records = [decode(line) for line in lines]
        return None if may_repeat(b"".join(lines), records) else _lists_of(records, now_us)
    except ValueError:  # msgspec raises subclasses of it
        return None


def _lists_of(records: Sequence[_PlainRecord], now_us: Callable[[], int]) -> Records:
    """Return the columns of records.

    Raises:
        ValueError: a value or key is not base64, or a tag is too long.
    """
    values = [
        None
        if record.value is None
        else from_base64(record.value)
        if record.value_encoding == "base64"
        else record.value.encode()
        for record in records
    ]
    keys = _keys(records)
    tags = _given([record.tag for record in records])
    if tags is not None and any(tag is not None and len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        raise ValueError(f"a tag has more than {TAG_BYTES_MAX} bytes")
    stamps = _given([record.timestamp_ms for record in records])
    timestamps_us: list[int] | None = None
    if stamps is not None:
        now = now_us()
        timestamps_us = [now if stamp is None else stamp * 1000 for stamp in stamps]
    partitions = _given([record.partition for record in records])
    return Records(values, keys=keys, tags=tags, timestamps_us=timestamps_us, partitions=partitions)


def _keys(records: Sequence[_PlainRecord]) -> list[bytes | None] | None:
    keys = _given([record.key for record in records])
    if keys is None:
        return None
    return [
        None if key is None else from_base64(key) if record.key_encoding == "base64" else key.encode()
        for key, record in zip(keys, records, strict=True)
    ]


def _given(column: list[_Item | UnsetType | None]) -> list[_Item | None] | None:
    """Return a column with None for absent items; None if all items are absent."""
    first = column[0]
    if (first is UNSET or first is None) and column.count(first) == len(column):
        return None
    return [None if item is UNSET else item for item in column]
