"""Records in JSON requests: strict validation and decoding.

Validation runs in pydantic's core over typed dictionaries (0.6 us a record; a model instance per record costs several
times that) and reports faults with JSON pointers. Whether a value fits its encoding is checked while it is decoded. A
body with a fault is not published at all.

A JSON value is stored as the bytes that the client sent: digits, escapes, order and repeats of members, white space.
The validator's Python values do not have these, so a second pass, which skips over values without decoding them, finds
the bytes.

A value of null is a tombstone in every encoding, `json` included; a missing value is an error. With `key_encoding` and
the third item of a header, every fetched record can be published again unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NotRequired

import msgspec
import pyarrow as pa
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from tidelog.cluster.trace_contexts import current
from tidelog.produce.open_batch import RecordLists
from tidelog_gateway.problems import ERRORS_LISTED_MAX, body_faults, invalid, pointer, shown, validation_errors
from tidelog_gateway.requests.first_faults import list_faults
from tidelog_gateway.requests.repeated_members import VALUES_OF_RECORDS, refuse_repeats, refuse_repeats_in
from tidelog_proto.batch.record_batch import columns_of
from tidelog_proto.limits import (
    JSON_DEPTH_MAX,
    JSON_NUMBER_CHARS_MAX,
    PARTITIONS_MAX,
    TAG_BYTES_MAX,
    TIMESTAMP_MS_MAX,
)
from tidelog_proto.text.base64_text import from_base64
from tidelog_proto.text.json_text import check_limits

HEADERS_PER_RECORD_MAX: Final = 256
HEADERS_PER_REQUEST_MAX: Final = 100_000
"""Maximum number of headers of all records of a request: one takes two bytes in a body and a hundred when decoded."""

_STRICT: Final = ConfigDict(extra="forbid", strict=True)
HeaderItem = Annotated[list[str | None], Field(min_length=2, max_length=3, fail_fast=True)]
PartitionNumber = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]


@with_config(_STRICT)
class JsonRecord(TypedDict):
    """One record of a JSON body."""

    value: Any
    key: NotRequired[str | None]
    value_encoding: NotRequired[Literal["utf8", "base64", "json"]]
    key_encoding: NotRequired[Literal["utf8", "base64"]]
    headers: NotRequired[Annotated[list[HeaderItem], Field(max_length=HEADERS_PER_RECORD_MAX, fail_fast=True)]]
    tag: NotRequired[Annotated[str, Field(max_length=TAG_BYTES_MAX)] | None]
    partition: NotRequired[PartitionNumber | None]
    timestamp_ms: NotRequired[Annotated[int, Field(ge=0, le=TIMESTAMP_MS_MAX)] | None]


@with_config(_STRICT)
class JsonBody(TypedDict):
    """A body of records."""

    records: Annotated[list[JsonRecord], Field(min_length=1, fail_fast=True)]


class RawRecord(msgspec.Struct, gc=False):
    """The bytes of a record's value as the client sent them."""

    value: msgspec.Raw


RawRecords = Callable[[], Sequence[RawRecord]]
"""Finds the raw values of a validated message; called only if the message has a JSON value.

Raises:
    ValueError: a number is NaN or infinite, which the validator accepts.
"""


class _RawBody(msgspec.Struct, gc=False):
    records: list[RawRecord]


_RAW_BODIES: Final = msgspec.json.Decoder(_RawBody)


@dataclass(slots=True)
class Records:
    """The records of one request: lists of equal length in the order of the request; unused lists are None.

    Attributes:
        values: None is a tombstone.
        partitions: the requested partition of each record; None: chosen by key.
    """

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    tags: list[str | None] | None = None
    timestamps_us: list[int] | None = None
    partitions: list[int | None] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> RecordLists:
        """Return the records as lists that a producer accepts."""
        return RecordLists(
            self.values, self.keys, self.headers, self.tags, self.partitions, self.timestamps_us, trace=current()
        )

    def columns(self) -> pa.RecordBatch:
        """Return the records as canonical columns (without the partitions)."""
        return columns_of(
            self.values, keys=self.keys, timestamps_us=self.timestamps_us, headers=self.headers, tags=self.tags
        )


@lru_cache(maxsize=1)
def body_adapter() -> TypeAdapter[JsonBody]:
    """Return the validator of a whole body."""
    return TypeAdapter(JsonBody)


def parse_body(body: bytes, *, records_max: int, now_us: int, members: int | None = None) -> Records:
    """Read a JSON body of at most `records_max` records into lists.

    Args:
        now_us: see `records_of`.
        members: number of members of all records, repeated ones included; None if they were not counted.

    Raises:
        Problem: 422 with a pointer for each of the first faults.
    """
    try:
        validated = body_adapter().validate_json(body)
    except ValidationError as error:
        raise invalid(_body_faults(body, error)) from error
    records = validated["records"]
    if len(records) > records_max:
        raise invalid(
            [
                {
                    "pointer": "/records",
                    "detail": (
                        f"the body has {len(records)} records, the maximum is {records_max}; send fewer records per "
                        "request"
                    ),
                }
            ]
        )
    if members is None:
        refuse_repeats_in(body, validated, opaque=VALUES_OF_RECORDS)
    elif members > sum(map(len, records)):
        refuse_repeats(body, opaque=VALUES_OF_RECORDS)
    return records_of(records, lambda: _RAW_BODIES.decode(body).records, now_us=now_us)


@lru_cache(maxsize=1)
def _record_adapter() -> TypeAdapter[JsonRecord]:
    return TypeAdapter(JsonRecord)


def _body_faults(body: bytes, error: ValidationError) -> list[dict[str, str]]:
    """Return the first faults of a body; validation has stopped at the first invalid record."""
    faults = error.errors(include_url=False, include_context=False) if error.error_count() <= ERRORS_LISTED_MAX else []
    others = [each for each in faults if each["loc"][1:2] == () or each["loc"][0] != "records"]
    if not faults or len(others) < len(faults):
        parsed = from_json(body)
        items = parsed.get("records") if isinstance(parsed, dict) else None
        in_records = list_faults(items, _record_adapter(), ["records"]) if isinstance(items, list) else []
        if in_records:
            return validation_errors(others) + in_records
    return body_faults(error)


def records_of(
    records: Sequence[JsonRecord],
    raw_records: RawRecords,
    *,
    now_us: int,
    path: Sequence[str | int] = ("records",),
) -> Records:
    """Convert validated records into lists.

    Args:
        records: validated records.
        raw_records: finds the bytes of their values.
        now_us: the timestamp of records without a timestamp, if another record of the request has one.
        path: path of the list in the message, for the pointers of errors.

    Raises:
        Problem: 422 when a value, key or header does not fit its encoding.
    """
    faults: list[dict[str, str]] = []
    values: list[bytes | None] = []
    raw: Sequence[RawRecord] | None = None
    for index, record in enumerate(records):
        value = record["value"]
        encoding = record.get("value_encoding", "utf8")
        try:
            if value is None:
                values.append(None)
            elif encoding == "json":
                if raw is None:
                    raw = _raw_records(records, raw_records, path)
                values.append(_from_json(raw[index].value))
            else:
                values.append(_ENCODERS[encoding](value))
        except ValueError as error:
            faults.append({"pointer": pointer([*path, index, "value"]), "detail": str(error)})
    used = {name for record in records for name in record}
    keys = _keys(records, path, faults) if "key" in used else None
    headers = _headers(records, path, faults) if "headers" in used else None
    tags = _tags(records, path, faults) if "tag" in used else None
    if faults:
        raise invalid(faults)
    stamps = [record.get("timestamp_ms") for record in records] if "timestamp_ms" in used else []
    partitions = [record.get("partition") for record in records] if "partition" in used else []
    return Records(
        values,
        keys=keys,
        headers=headers,
        tags=tags,
        timestamps_us=[now_us if stamp is None else stamp * 1000 for stamp in stamps] if _any_given(stamps) else None,
        partitions=partitions if _any_given(partitions) else None,
    )


def _any_given(column: Sequence[object]) -> bool:
    return any(item is not None for item in column)


def _keys(records: Sequence[JsonRecord], path: Sequence[str | int], faults: list[dict[str, str]]) -> list[bytes | None]:
    keys: list[bytes | None] = []
    for index, record in enumerate(records):
        key = record.get("key")
        try:
            keys.append(None if key is None else _ENCODERS[record.get("key_encoding", "utf8")](key))
        except ValueError as error:
            faults.append({"pointer": pointer([*path, index, "key"]), "detail": str(error)})
    return keys


def _headers(
    records: Sequence[JsonRecord], path: Sequence[str | int], faults: list[dict[str, str]]
) -> list[list[tuple[str, bytes | None]]]:
    headers: list[list[tuple[str, bytes | None]]] = []
    for index, record in enumerate(records):
        pairs: list[tuple[str, bytes | None]] = []
        for at, item in enumerate(record.get("headers", ())):
            try:
                pairs.append(_header(item))
            except ValueError as error:
                faults.append({"pointer": pointer([*path, index, "headers", at]), "detail": str(error)})
        headers.append(pairs)
    return headers


def _header(item: Sequence[str | None]) -> tuple[str, bytes | None]:
    """Return a header's name and value; the optional third item is the encoding of the value."""
    name, value = item[0], item[1]
    encoding = item[2] if len(item) == 3 else "utf8"
    if name is None:
        raise ValueError("the name of a header must not be null")
    if encoding not in {"utf8", "base64"}:
        detail = "the third item of a header must be the value's encoding, utf8 or base64"
        raise ValueError(f"{detail}, got {shown(encoding)}")
    return name, None if value is None else _ENCODERS[encoding](value)


def _tags(records: Sequence[JsonRecord], path: Sequence[str | int], faults: list[dict[str, str]]) -> list[str | None]:
    tags = [record.get("tag") for record in records]
    for index, tag in enumerate(tags):
        if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
            text = f"a tag has at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}"
            faults.append({"pointer": pointer([*path, index, "tag"]), "detail": text})
    return tags


def _from_utf8(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"must be a string or null, got {_kind(value)}; for JSON values set value_encoding to json")  # noqa: TRY004 # a fault of the request, collected with the others
    return value.encode()


def _kind(value: object) -> str:
    return "an array or an object" if isinstance(value, list | dict) else shown(value)


def _from_base64(value: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"must be a string of base64, or null, got {_kind(value)}")  # noqa: TRY004 # a fault of the request, collected with the others
    return from_base64(value)


def _from_json(raw: msgspec.Raw) -> bytes:
    """Return the bytes of a validated JSON value; check its limits.

    Raises:
        ValueError: the value exceeds a limit.
    """
    data = bytes(raw)
    # Most values are too small to exceed a limit, and the validator has refused unpaired surrogates.
    if len(data) > _SMALL_BYTES:
        check_limits(data.decode())
    return data


_SMALL_BYTES: Final = min(2 * JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX)
"""A value of at most this size exceeds neither limit."""


def _raw_records(
    records: Sequence[JsonRecord], raw_records: RawRecords, path: Sequence[str | int]
) -> Sequence[RawRecord]:
    """Find the bytes of the records' values.

    Raises:
        Problem: 422, the validator has accepted numbers that JSON does not have.
    """
    try:
        return raw_records()
    except ValueError as error:
        faults = [
            {"pointer": pointer([*path, index, "value"]), "detail": "NaN and infinities are not JSON numbers"}
            for index, record in enumerate(records)
            if _has_no_number(record["value"])
        ]
        raise invalid(faults or [{"pointer": pointer(path), "detail": f"is not JSON: {error}"}]) from error


def _has_no_number(value: object) -> bool:
    """Return whether a value contains NaN or infinity; the validator also reads `1e999` as infinity."""
    if isinstance(value, float):
        return not math.isfinite(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_no_number, parts))


_ENCODERS: Final[dict[str, Callable[[object], bytes]]] = {
    "utf8": _from_utf8,
    "base64": _from_base64,
}
