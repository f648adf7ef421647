"""A small plain batch as JSON, read from its bytes: no array of pyarrow is made (`plain_columns.py` has the reason).

The result is byte by byte that of `whole_batch`, to which every batch is left that is not plain.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from tidelog_gateway.records_out import TakenJson, is_literal
from tidelog_proto.batch.record_batch import RecordBatch, plain_columns_of

PLAIN_RECORDS_MAX: Final = 100
"""pyarrow cuts larger batches into values at less cost."""


def plain_json(batch: RecordBatch) -> TakenJson | None:
    """Return all records of a batch; None where the batch is not plain, or holds bytes that are not UTF-8."""
    columns = plain_columns_of(batch)
    if columns is None:
        return None
    count, first = batch.header.record_count, batch.header.base_offset
    timestamps_us, *texts = columns
    parts: list[Any] = [range(first, first + count)]
    kinds = [_ABSENT, _ABSENT, _ABSENT]
    payload_bytes = 0
    if timestamps_us is not None:
        parts.append([timestamp_us // 1000 for timestamp_us in timestamps_us])
    for number, column in enumerate(texts):
        if column is None:
            continue
        payload_bytes += column.offsets[-1] - column.offsets[0]
        entries: list[bytes] = column.entries()
        kinds[number] = _AS_IS
        if not is_literal(column.data):
            kinds[number] = _ESCAPED
            try:
                entries = [orjson.dumps(entry.decode()) for entry in entries]
            except UnicodeDecodeError:
                return None
        parts.append(entries)
    row = _row(None if timestamps_us is not None else batch.header.base_timestamp_us // 1000, *kinds)
    width = len(parts)
    filling: list[Any] = [None] * (width * count)
    for number, part in enumerate(parts):
        filling[number::width] = part
    return TakenJson(b"[%b]" % (b",".join([row] * count) % tuple(filling)), count, payload_bytes)


_ABSENT, _AS_IS, _ESCAPED = range(3)
_PLACES: Final = (b"null", b'"%b"', b"%b")


def _row(timestamp_ms: int | None, key: int, value: int, tag: int) -> bytes:
    """Return the template of a record; `timestamp_ms` is None where each record has its own."""
    return b'{"offset":%%d,"timestamp_ms":%b,"key":%b,"value":%b,"value_encoding":"utf8"%b}' % (
        b"%d" if timestamp_ms is None else b"%d" % timestamp_ms,
        _PLACES[key],
        _PLACES[value],
        b',"tag":' + _PLACES[tag] if tag else b"",
    )
