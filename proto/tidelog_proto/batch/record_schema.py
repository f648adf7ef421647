"""One Arrow schema for records of any producer, for tables made of many batches."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE, no_headers
from tidelog_proto.batch.record_batch import RecordBatch

_FIELDS: Final[list[pa.Field[Any]]] = [
    pa.field("partition", pa.int32(), nullable=False),
    pa.field("offset", pa.int64(), nullable=False),
    pa.field("timestamp", TIMESTAMP_TYPE, nullable=False),
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("headers", HEADERS_TYPE, nullable=False),
    pa.field("tag", pa.string()),
]
RECORDS_SCHEMA: Final = pa.schema(_FIELDS)


def columns_at(batch: RecordBatch, partition: int) -> pa.RecordBatch:
    """Return a batch's records as columns of `RECORDS_SCHEMA`; columns that the producer sent are not copied.

    Raises:
        TypeError: the batch is typed; `typed_rows.rows_of` returns its rows.
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    if batch.layout is not None:
        raise TypeError(f"the batch has schema {batch.layout.number}, so its values are rows and no bytes")
    sent = batch.columns()
    count = sent.num_rows
    if not count:
        return pa.RecordBatch.from_pylist([], schema=RECORDS_SCHEMA)
    columns: dict[str, Any] = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": batch.offsets(),
        "timestamp": pa.repeat(pa.scalar(batch.header.base_timestamp_us, TIMESTAMP_TYPE), count),
        "headers": no_headers(count),
    }
    columns |= {name: sent.column(name) for name in sent.schema.names}
    return pa.RecordBatch.from_arrays(
        [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in RECORDS_SCHEMA],
        schema=RECORDS_SCHEMA,
    )
