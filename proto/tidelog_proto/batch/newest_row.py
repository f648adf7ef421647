"""Search for the last record of a batch with a key or tag, and the batch that has this record alone.

Arrow compares a key with the key of each record, which takes some 15 ns a record. Bytes are found several times as fast
by `bytes.find`, which works on the keys as one text; a place counts only if a key begins and ends there. This has a
bound: it holds the GIL, and may find many places, so Arrow compares the keys of large batches and frequent ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidelog_proto.batch.canonical_columns import byte_offsets
from tidelog_proto.batch.derived_batch import matching_rows, row_alone
from tidelog_proto.batch.header import Buffer, Flags, stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.single_record import SINGLE_BYTES_MAX, encode_single
from tidelog_proto.limits import MIB

TEXT_BYTES_MAX: Final = 1 * MIB
"""Maximum size of the keys of a batch that are searched as one text."""
_PLACES_MAX: Final = 16
"""Maximum number of places of a key in this text that are examined."""


def newest_row(batch: RecordBatch, *, key: bytes | None, tag: str | None) -> int | None:
    """Return the index of the last record of a stored batch that matches, as in `filter_batch`; None if none does.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    if key and tag is None and batch.header.flags & Flags.KEY and not batch.control and len(batch):
        try:
            return _last_place(batch.columns().column("key"), key)
        except _TooManyError:
            pass
    rows = matching_rows(batch, key=key, tag=tag)
    return None if rows is None else int(np.flatnonzero(rows)[-1])


class _TooManyError(Exception):
    """The keys are too large, or the searched bytes occur too often."""


def _last_place(column: Any, key: bytes) -> int | None:
    """Return the index of the last entry of a column of keys that equals `key`, which is not empty; None if none does.

    Raises:
        _TooManyError: the keys are larger than `TEXT_BYTES_MAX`, or `key` occurs more than `_PLACES_MAX` times.
    """
    offsets, data = byte_offsets(column), column.buffers()[2]
    if data is None:
        return None
    start, end = int(offsets[0]), int(offsets[-1])
    if end - start > TEXT_BYTES_MAX:
        raise _TooManyError
    text = bytes(memoryview(data)[start:end])
    found: int | None = None
    at = text.find(key)
    for _ in range(_PLACES_MAX):
        if at < 0:
            return found
        # Entries without bytes may begin at the same place, before the one that has the bytes there.
        row = int(offsets.searchsorted(start + at, "right")) - 1
        if offsets[row] == start + at and offsets[row + 1] == start + at + len(key):
            if column.null_count and not column[row].is_valid:
                raise _TooManyError
            found = row
        at = text.find(key, at + 1)
    raise _TooManyError


def record_alone(batch: RecordBatch, row: int) -> Buffer:
    """Return a batch that has only the record at index `row` of a stored batch, with the offset of this record.

    The batch is not part of a log: its digest has no predecessor. It is plain (see `plain_columns.py`) if the record is
    small, has a value and no headers, and is not typed; otherwise it is a derived batch that covers the offsets of the
    stored batch.

    Raises:
        ProtocolError: as `row_alone`.
    """
    if batch.layout is not None:
        return row_alone(batch, row)
    columns = batch.columns()
    fields: dict[str, Any] = {
        name: column[row] for name, column in zip(columns.schema.names, columns.columns, strict=True)
    }
    key, value = (fields[name].as_py() if name in fields else None for name in ("key", "value"))
    has_headers = "headers" in fields and len(fields["headers"])
    if has_headers or value is None or len(value) + len(key or b"") > SINGLE_BYTES_MAX:
        return row_alone(batch, row)
    tag = fields["tag"].as_py() if "tag" in fields else None
    header = batch.header
    stamps: Any = fields.get("timestamp")
    single = encode_single(
        value,
        key,
        now_us=header.base_timestamp_us if stamps is None else stamps.cast(pa.int64()).as_py(),
        tag=None if tag is None else tag.encode(),
    )
    alone = bytearray().join((single.header, single.body))
    stamp_owner(
        alone,
        base_offset=batch.offset_list()[row],
        append_timestamp_us=header.append_timestamp_us,
        epoch=header.epoch,
        owner_incarnation=0,
        previous_digest=0,
    )
    return alone
