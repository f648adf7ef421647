"""JSON encoder for all records of a small batch; it does not measure each record, because it never splits a batch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_gateway.records.json_encoding import JsonRecords, check_untyped, json_array, payload_sizes
from tidelog_proto.batch.record_batch import RecordBatch

_PLAIN = ("key", "value", "tag")
_TYPE_IDS = frozenset({pa.binary().id, pa.string().id})


def whole_batch(batch: RecordBatch, json_bytes_max: int) -> JsonRecords | None:
    """Return all records of a batch as JSON; None if several records are longer than `json_bytes_max` together.

    Raises:
        UnsupportedBatchError: the batch is typed.
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    check_untyped(batch)
    columns = batch.columns()
    data = json_array(columns, batch.offset_list(), batch.header.base_timestamp_us)
    if len(data) > json_bytes_max and columns.num_rows > 1:
        return None
    return JsonRecords(data, columns.num_rows, payload_bytes(columns))


def payload_bytes(columns: pa.RecordBatch) -> int:
    """Return the total payload of all records: the sum of `payload_sizes`."""
    names = columns.schema.names
    if "headers" in names:
        return int(pc.sum(payload_sizes(columns)).as_py() or 0)
    return sum(_bytes_of(columns.column(name)) for name in _PLAIN if name in names)


def _bytes_of(array: Any) -> int:
    """Return the total length of the values of a column of bytes or text."""
    if array.null_count or array.type.id not in _TYPE_IDS:
        return sum(len(value) for value in array.cast(pa.binary()).to_pylist() if value is not None)
    ends = memoryview(array.buffers()[1]).cast("i")
    return int(ends[array.offset + len(array)] - ends[array.offset])
