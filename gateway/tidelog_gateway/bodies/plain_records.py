"""Records of a JSON body whose values are text, decoded and validated by msgspec without pydantic's objects.

Whatever it does not take (a fault, values of other JSON types, headers that name encodings) is for `records_in`, which
finds out what is wrong and takes the rest: so there is one wording of each fault, and one reading of each value.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from tidelog_gateway.records_in import Records
from tidelog_proto.limits import PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX

_PartitionNumber = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
_TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=TIMESTAMP_MS_MAX)]


class _PlainRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str | None
    key: str | None = None
    value_encoding: Literal["utf8", "base64"] = "utf8"
    key_encoding: Literal["utf8", "base64"] = "utf8"
    tag: str | None = None
    partition: _PartitionNumber | None = None
    timestamp_ms: _TimestampMs | None = None


class _ValueRecord(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str


class _ValueBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    records: Annotated[list[_ValueRecord], msgspec.Meta(min_length=1)]


class _PlainBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    records: Annotated[list[_PlainRecord], msgspec.Meta(min_length=1)]


_VALUE_BODIES: Final = msgspec.json.Decoder(_ValueBody)
_BODIES: Final = msgspec.json.Decoder(_PlainBody)
_LINES: Final = msgspec.json.Decoder(_PlainRecord)


def plain_records(body: bytes, *, records_max: int, now_us: Callable[[], int]) -> Records | None:
    """Return the records of a body, None where it is not as simple as that or has a fault.

    Args:
        body: of the request.
        records_max: how many there may be.
        now_us: tells the timestamp of records without one when others have one.
    """
    try:
        values_alone = _VALUE_BODIES.decode(body).records
    except ValueError:  # the first record that has more ends this
        pass
    else:
        return Records([record.value.encode() for record in values_alone]) if len(values_alone) <= records_max else None
    try:
        records = _BODIES.decode(body).records
        if len(records) > records_max:
            return None
        return _lists_of(records, now_us)
    except (ValueError, binascii.Error):  # also those of msgspec
        return None


def plain_lines(lines: Sequence[bytes], *, now_us: Callable[[], int]) -> Records | None:
    """Return the records of lines with one each, as `plain_records` does of a body."""
    decode = _LINES.decode
    try:
        return _lists_of([decode(line) for line in lines], now_us)
    except (ValueError, binascii.Error):  # also those of msgspec
        return None


def _lists_of(records: Sequence[_PlainRecord], now_us: Callable[[], int]) -> Records:
    """Return records as lists.

    Raises:
        ValueError: one of them is not valid.
    """
    values = [
        None
        if record.value is None
        else record.value.encode()
        if record.value_encoding == "utf8"
        else base64.b64decode(record.value, validate=True)
        for record in records
    ]
    keys = _keys(records)
    tags = [record.tag for record in records]
    if _any_given(tags) and any(tag is not None and len(tag.encode()) > TAG_BYTES_MAX for tag in tags):
        raise ValueError("a tag is too long")
    stamps = [record.timestamp_ms for record in records]
    timestamps_us: list[int] | None = None
    if _any_given(stamps):
        now = now_us()
        timestamps_us = [now if stamp is None else stamp * 1000 for stamp in stamps]
    partitions = [record.partition for record in records]
    return Records(
        values,
        keys=keys,
        tags=tags if _any_given(tags) else None,
        timestamps_us=timestamps_us,
        partitions=partitions if _any_given(partitions) else None,
    )


def _keys(records: Sequence[_PlainRecord]) -> list[bytes | None] | None:
    keys = [record.key for record in records]
    if not _any_given(keys):
        return None
    return [
        None if key is None else key.encode() if record.key_encoding == "utf8" else base64.b64decode(key, validate=True)
        for key, record in zip(keys, records, strict=True)
    ]


def _any_given(column: Sequence[Any]) -> bool:
    return column.count(None) < len(column)
