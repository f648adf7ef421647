"""Conversion of records in `tidelog.v1.proto`: a `pub` to lists, a batch to protobuf."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa

from tidelog_gateway.problems import invalid, pointer
from tidelog_gateway.protocol.codecs import EncodedRecords
from tidelog_gateway.records.json_decoding import HEADERS_PER_RECORD_MAX, Records
from tidelog_gateway.records.row_batches import RecordReader
from tidelog_proto import websocket_pb2 as pb
from tidelog_proto.limits import PARTITIONS_MAX, TAG_BYTES_MAX, TIMESTAMP_MS_MAX

RECORD_MEMBERS_BYTES: Final = 64
"""Limit of a record's length without payload and headers: field tags, lengths and numbers."""

HEADER_MEMBERS_BYTES: Final = 16
FAULTS_MAX: Final = 100
"""Limit of reported errors; the rest of the message is not checked."""


def records_in_proto(records: Sequence[pb.PubRecord], now_us: int) -> Records:
    """Return the records of a `pub` as lists.

    Args:
        records: at least one record.
        now_us: timestamp of records without one, if another record of the request has one.

    Raises:
        Problem: 422, a tag, partition, timestamp or number of headers is out of range.
    """
    faults: list[dict[str, str]] = []
    for index, record in enumerate(records):
        for name, detail in _faults(record):
            faults.append({"pointer": pointer(["pub", "records", index, name]), "detail": detail})
        if len(faults) >= FAULTS_MAX:
            break
    if faults:
        raise invalid(faults)
    keys = [record.key if record.HasField("key") else None for record in records]
    tags = [record.tag if record.HasField("tag") else None for record in records]
    partitions = [record.partition if record.HasField("partition") else None for record in records]
    stamps = [record.timestamp_ms * 1000 if record.HasField("timestamp_ms") else None for record in records]
    return Records(
        [record.value if record.HasField("value") else None for record in records],
        keys=keys if _any_given(keys) else None,
        headers=[_headers(record) for record in records] if any(record.headers for record in records) else None,
        tags=tags if _any_given(tags) else None,
        timestamps_us=[now_us if stamp is None else stamp for stamp in stamps] if _any_given(stamps) else None,
        partitions=partitions if _any_given(partitions) else None,
    )


def take_proto(reader: RecordReader, records_max: int, bytes_max: int, encoded_bytes_max: int) -> EncodedRecords:
    """Take the next records as the field `records` of a `Batch`; see `BatchReader.take_json` for the limits."""
    rows = reader.peek(records_max, bytes_max)
    batch = pb.Batch()
    _add_records(batch, rows.columns, rows.offsets, rows.timestamp_us)
    ends = list(accumulate(_field_bytes(record.ByteSize()) for record in batch.records))
    count = max(1, bisect_right(ends, encoded_bytes_max))
    del batch.records[count:]
    reader.advance(count)
    return EncodedRecords(batch.SerializeToString(), count, rows.payload_ends[count - 1])


def proto_bytes_max(reader: RecordReader, records_max: int, bytes_max: int) -> int:
    """Return the approximate maximum length of the next records when encoded."""
    rows = reader.peek(records_max, bytes_max)
    headers = 0
    if "headers" in rows.columns.schema.names:
        lists: Any = rows.columns.column("headers")
        headers = len(lists.flatten())
    count = rows.columns.num_rows
    return rows.payload_ends[count - 1] + RECORD_MEMBERS_BYTES * count + HEADER_MEMBERS_BYTES * headers


def _faults(record: pb.PubRecord) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    if len(record.tag.encode()) > TAG_BYTES_MAX:
        faults.append(("tag", f"must have at most {TAG_BYTES_MAX} bytes, has {len(record.tag.encode())}"))
    if record.partition >= PARTITIONS_MAX:
        faults.append(("partition", f"must be < {PARTITIONS_MAX}, got {record.partition}"))
    if record.timestamp_ms > TIMESTAMP_MS_MAX:
        faults.append(("timestamp_ms", f"must be <= {TIMESTAMP_MS_MAX}, got {record.timestamp_ms}"))
    if len(record.headers) > HEADERS_PER_RECORD_MAX:
        faults.append(("headers", f"has {len(record.headers)} headers, the maximum is {HEADERS_PER_RECORD_MAX}"))
    return faults


def _headers(record: pb.PubRecord) -> list[tuple[str, bytes | None]]:
    return [(header.name, header.value if header.HasField("value") else None) for header in record.headers]


def _any_given(column: Sequence[object]) -> bool:
    return any(item is not None for item in column)


def _add_records(batch: pb.Batch, columns: pa.RecordBatch, offsets: Sequence[int], timestamp_us: int) -> None:
    names = set(columns.schema.names)

    def listed(name: str) -> list[Any]:
        return columns.column(name).to_pylist() if name in names else [None] * columns.num_rows

    if "timestamp" in names:
        column: Any = columns.column("timestamp")
        stamps_us: list[int] = column.view(pa.int64()).to_pylist()
    else:
        stamps_us = [timestamp_us] * columns.num_rows
    parts = (offsets, stamps_us, listed("key"), listed("value"), listed("tag"))
    for offset, stamp_us, key, value, tag in zip(*parts, strict=True):
        batch.records.add(offset=offset, timestamp_ms=stamp_us // 1000, key=key, value=value, tag=tag)
    if "headers" in names:
        for record, pairs in zip(batch.records, listed("headers"), strict=True):
            for pair in pairs or ():
                record.headers.add(name=pair["key"], value=pair["value"])


def _field_bytes(size_bytes: int) -> int:
    """Return the length of an embedded message as a field, with its tag and its length prefix."""
    return 1 + max(1, -(-size_bytes.bit_length() // 7)) + size_bytes
