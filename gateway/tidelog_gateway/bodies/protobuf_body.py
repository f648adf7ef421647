"""Records as protobuf: a `PublishRecords` of `tidelog_proto/publish.proto`.

The protobuf parser would create an object for each record without yielding to the event loop, and a body may have
millions of records, because a record can be as small as two bytes. So the records are found by their lengths first, and
parsed in parts between which other requests run. Unknown fields are refused: they may be options of a newer client,
which this gateway would ignore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from tidelog_gateway.problems import Problem, invalid
from tidelog_gateway.records.json_decoding import HEADERS_PER_RECORD_MAX, HEADERS_PER_REQUEST_MAX, Records
from tidelog_proto.limits import KIB, PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX
from tidelog_proto.publish_pb2 import PublishRecord, PublishRecords

_PART_BYTES: Final = 64 * KIB
_PART_RECORDS: Final = 500
_RECORDS_TAG: Final = 0x0A
_FIELDS_MAX: Final = HEADERS_PER_RECORD_MAX + 16
"""Maximum number of fields of a record that is larger than a part: headers, and other fields, which may be repeated."""
_VARINT_BYTES_MAX: Final = 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES: Final = {_FIXED64: 8, _FIXED32: 4}


class _Cut(NamedTuple):
    """A part of the body with whole records: its end, and the number of records."""

    end: int
    records: int


async def protobuf_records(
    body: bytes, *, records_max: int, now_us: int, pace: Callable[[], Awaitable[None]]
) -> Records:
    """Read a protobuf body of at most `records_max` records.

    Raises:
        Problem: 422, with the number of the record if a single record is invalid; also those that `pace` raises.
    """
    at = 0
    lists = _Lists(now_us)
    while at < len(body):
        await pace()
        cut = _cut(body, at, len(lists.values))
        if len(lists.values) + cut.records > records_max:
            raise _fault("/records", f"the body has more than {records_max} records; send fewer records per request")
        lists.add(_parsed(body[at : cut.end], len(lists.values)))
        at = cut.end
    if not lists.values:
        raise _fault("/records", "there are no records; send at least one")
    return lists.records()


def _cut(body: bytes, at: int, number: int) -> _Cut:
    """Find the end of the part of the body that begins at byte `at` with record `number`."""
    start, count = at, 0
    while at < len(body) and count < _PART_RECORDS:
        if body[at] != _RECORDS_TAG:
            raise _fault(
                "",
                f"byte {at} does not begin a record: expected {_RECORDS_TAG:#04x}, got {body[at]:#04x}; the body must "
                "be a PublishRecords message of publish.proto",
            )
        size_bytes, begin = _varint(body, at + 1)
        end = begin + size_bytes
        if end > len(body):
            detail = f"has {size_bytes} bytes, of which only {len(body) - begin} were sent"
            raise _fault(f"/records/{number + count}", detail)
        if size_bytes > _PART_BYTES:
            _check_fields(body, begin, end, number + count)
        if count and end - start > _PART_BYTES:
            break
        at, count = end, count + 1
    return _Cut(at, count)


def _check_fields(body: bytes, at: int, end: int, number: int) -> None:
    """Refuse a large record with too many fields before it is parsed."""
    where = f"/records/{number}"
    for _ in range(_FIELDS_MAX):
        if at >= end:
            return
        tag, at = _varint(body, at)
        kind = tag & 7
        if kind == _VARINT:
            at = _varint(body, at)[1]
        elif kind == _BYTES:
            size_bytes, at = _varint(body, at)
            at += size_bytes
        elif kind in _FIXED_BYTES:
            at += _FIXED_BYTES[kind]
        else:
            raise _fault(
                where, f"is not protobuf: it has a field of wire type {kind}, and only 0, 1, 2 and 5 are allowed"
            )
    if at < end:
        detail = f"has more than {_FIELDS_MAX} fields; a record has at most {HEADERS_PER_RECORD_MAX} headers"
        raise _fault(where, detail)


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a varint and the index after it."""
    value = 0
    for index, byte in enumerate(body[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _fault("", f"the varint at byte {at} does not end within {_VARINT_BYTES_MAX} bytes: the body is not protobuf")


def _parsed(part: bytes, first: int) -> list[PublishRecord]:
    try:
        message = PublishRecords.FromString(part)
    except DecodeError as error:
        raise _fault(f"/records/{first}", f"this record or a later one is not protobuf: {error}") from error
    size_bytes = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size_bytes:
        raise _fault(
            f"/records/{first}",
            "this record or a later one has fields that publish.proto does not define; omit them",
        )
    return list(message.records)


class _Lists:
    """Collects the records of a body in lists, while the body is parsed in parts."""

    def __init__(self, now_us: int) -> None:
        self.values: list[bytes | None] = []
        self._now_us = now_us
        self._keys: list[bytes | None] = []
        self._tags: list[str | None] = []
        self._partitions: list[int | None] = []
        self._stamps: list[int | None] = []
        self._headers: list[list[tuple[str, bytes | None]]] = []
        self._header_count = 0

    def add(self, records: list[PublishRecord]) -> None:
        """Add parsed records.

        Raises:
            Problem: 422, one of them is invalid, or the body has too many headers.
        """
        for record in records:
            fault = _fault_of(record)
            if fault is not None:
                raise _fault(f"/records/{len(self.values)}{fault[0]}", fault[1])
            self.values.append(record.value if record.HasField("value") else None)
            self._keys.append(record.key if record.HasField("key") else None)
            self._tags.append(record.tag if record.HasField("tag") else None)
            self._partitions.append(record.partition if record.HasField("partition") else None)
            self._stamps.append(record.timestamp_ms if record.HasField("timestamp_ms") else None)
            headers = [(each.name, each.value if each.HasField("value") else None) for each in record.headers]
            self._headers.append(headers)
            self._header_count += len(headers)
        if self._header_count > HEADERS_PER_REQUEST_MAX:
            raise _fault(
                "/records",
                f"the records have more than {HEADERS_PER_REQUEST_MAX} headers; send fewer records per request",
            )

    def records(self) -> Records:
        """Return all records; columns that no record uses are left out."""
        return Records(
            self.values,
            keys=_used(self._keys),
            tags=_used(self._tags),
            partitions=_used(self._partitions),
            headers=self._headers if self._header_count else None,
            timestamps_us=[self._now_us if stamp is None else stamp * 1000 for stamp in self._stamps]
            if _used(self._stamps)
            else None,
        )


def _used(column: list[Any]) -> list[Any] | None:
    return column if any(item is not None for item in column) else None


def _fault_of(record: PublishRecord) -> tuple[str, str] | None:
    """Return the first fault of a record: the member and the reason; None if the record is valid."""
    if not record.HasField("value") and not record.tombstone:
        return "/value", "is missing; set value, which may be empty, or tombstone"
    if record.HasField("tag") and len(record.tag.encode()) > TAG_BYTES_MAX:
        return "/tag", f"must have at most {TAG_BYTES_MAX} bytes, got {len(record.tag.encode())}"
    if record.partition >= PARTITIONS_MAX:
        return "/partition", f"must be less than {PARTITIONS_MAX}, got {record.partition}"
    if record.timestamp_ms > TIMESTAMP_MS_MAX:
        return "/timestamp_ms", f"must be at most {TIMESTAMP_MS_MAX}, got {record.timestamp_ms}"
    if len(record.headers) > HEADERS_PER_RECORD_MAX:
        return "/headers", f"has {len(record.headers)} headers, the maximum is {HEADERS_PER_RECORD_MAX}"
    return None


def _fault(where: str, detail: str) -> Problem:
    return invalid([{"pointer": where, "detail": detail}])
