"""Derived batches for tests, made by hand: nothing of `derived.py` is used, so that readers are held to the format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from tests.proto.batches import NOW_US, Given

from tidelog_proto.columns import OFFSET_DELTA, flags_of
from tidelog_proto.header import NO_TIMESTAMP_US, BatchHeader, Flags


def derived(records: Given, offsets: Sequence[int], *, base: int, end: int, **changes: Any) -> bytes:
    """Return a batch that covers `base` up to and without `end`, and has the records at `offsets`; it is not stamped
    but for its base offset."""
    stamps = records.timestamps_us or [NOW_US + offset for offset in offsets]
    columns = Given(records.values, records.keys, stamps, records.headers, records.tags).columns()
    deltas = pa.array([offset - base for offset in offsets], OFFSET_DELTA.type)
    fields = [OFFSET_DELTA, *columns.schema]
    body = memoryview(pa.RecordBatch.from_arrays([deltas, *columns.columns], schema=pa.schema(fields)).serialize())
    header = BatchHeader(
        flags=flags_of(columns.schema) | Flags.DERIVED,
        body_length=len(body),
        uncompressed_length=len(body),
        record_count=len(offsets),
        body_crc=crc32c(body),
        last_offset_delta=end - base - 1,
        base_timestamp_us=min(stamps),
        max_timestamp_us=max(stamps),
        base_offset=base,
    )
    return header._replace(**changes).pack() + bytes(body)


def nothing_left(*, base: int, end: int, **changes: Any) -> bytes:
    """Return a batch without records that covers `base` up to and without `end`."""
    header = BatchHeader(
        flags=Flags.DERIVED,
        body_length=0,
        uncompressed_length=0,
        record_count=0,
        body_crc=0,
        last_offset_delta=end - base - 1,
        base_timestamp_us=NO_TIMESTAMP_US,
        max_timestamp_us=NO_TIMESTAMP_US,
        base_offset=base,
    )
    return header._replace(**changes).pack()
