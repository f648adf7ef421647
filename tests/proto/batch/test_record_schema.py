from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tidelog import ConsumedBatch
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000


def consumed(columns: pa.RecordBatch) -> ConsumedBatch:
    return ConsumedBatch("t", 3, RecordBatch.parse(encode_batch(columns, now_us=NOW_US).to_bytes()))


def test_every_batch_has_the_same_columns() -> None:
    plain = consumed(columns_of([b"a", None])).to_arrow()
    full = consumed(
        columns_of([b"b"], keys=[b"k"], timestamps_us=[NOW_US + 1], headers=[[("h", b"1")]], tags=["t"])
    ).to_arrow()
    for columns in (plain, full):
        columns.validate(full=True)
        assert columns.schema.equals(RECORDS_SCHEMA)
    table = pa.Table.from_batches([plain, full])
    none = {"partition": 3, "timestamp": NOW, "key": None, "headers": [], "tag": None}
    assert table.slice(0, 2).to_pylist() == [{"offset": 0, "value": b"a"} | none, {"offset": 1, "value": None} | none]
    assert table.slice(2).to_pylist() == [
        {
            "partition": 3,
            "offset": 0,
            "timestamp": NOW.replace(microsecond=1),
            "key": b"k",
            "value": b"b",
            "headers": [{"key": "h", "value": b"1"}],
            "tag": "t",
        }
    ]


def test_sent_columns_are_not_copied_and_slices_begin_at_their_first_record() -> None:
    whole = consumed(columns_of([b"a" * 100, b"b" * 100, b"c" * 100]))
    sent: Any = whole.batch.columns().column("value")
    given: Any = whole.to_arrow().column("value")
    assert given.buffers()[2].address == sent.buffers()[2].address
    tail = ConsumedBatch("t", 3, whole.batch.slice_from(1)).to_arrow()
    assert tail.column("offset").to_pylist() == [1, 2]
