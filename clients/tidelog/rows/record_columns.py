"""The columns of records of typed topics, besides the fields of their rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog_proto.batch.record_batch import RecordBatch

RECORD_COLUMNS: Final = pa.schema(
    [
        pa.field("_partition", pa.int32(), nullable=False),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False),
        pa.field("_key", pa.binary()),
        pa.field("_headers", HEADERS_TYPE),
        pa.field("_tag", pa.string()),
    ]
)
"""The columns of a record besides the fields of its row."""


def columns_of_records(batch: RecordBatch, partition: int, names: Iterable[str]) -> dict[str, Any]:
    """Return some of `RECORD_COLUMNS` as Arrow arrays, by name.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    count, found = len(batch), dict[str, Any]()
    for name in names:
        stored = name[1:]
        if name == "_partition":
            found[name] = pa.repeat(pa.scalar(partition, pa.int32()), count)
        elif name == "_offset":
            found[name] = batch.offsets()
        elif count and stored in batch.columns().schema.names:
            found[name] = batch.columns().column(stored)
        elif name == "_timestamp":
            stamp: Any = pa.scalar(batch.header.base_timestamp_us, pa.int64()).cast(TIMESTAMP_TYPE)
            found[name] = pa.repeat(stamp, count)
        else:
            found[name] = pa.nulls(count, RECORD_COLUMNS.field(name).type)
    return found
