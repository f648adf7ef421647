"""JSON encoder for small plain batches that does not use pyarrow, for the reason that `plain_columns.py` gives.

The result is equal to that of `whole_batch`, which encodes all other batches.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import orjson

from tidelog_gateway.records.json_encoding import JsonRecords
from tidelog_gateway.records.json_encoding import is_literal as is_literal_text
from tidelog_proto.batch.record_batch import RecordBatch, plain_columns_of
from tidelog_proto.limits import KIB

PLAIN_RECORDS_MAX: Final = 100
"""Maximum number of records of a batch that is encoded here; for larger batches pyarrow is faster."""


def plain_json(batch: RecordBatch) -> JsonRecords | None:
    """Return all records of a batch as JSON; None if the batch is not plain or has bytes that are not UTF-8."""
    columns = plain_columns_of(batch)
    if columns is None:
        return None
    timestamps_us, *texts = columns
    header = batch.header
    count, first = header.record_count, header.base_offset
    if timestamps_us is None:
        parts: list[Any] = [range(first, first + count), (b"%d" % (header.base_timestamp_us // 1000),) * count]
    else:
        parts = [range(first, first + count), [b"%d" % (timestamp_us // 1000) for timestamp_us in timestamps_us]]
    kinds = _NO_TEXTS
    payload_bytes = 0
    for column, kinds_of_column in zip(texts, _KINDS, strict=True):
        if column is None:
            continue
        offsets, data = column
        payload_bytes += offsets[-1] - offsets[0]
        entries = [data[begin:end] for begin, end in pairwise(offsets)]
        if len(data) > _SHORT_BYTES:
            is_literal = is_literal_text(data)
        else:
            is_literal = data.isascii() and len(data.translate(None, _ESCAPED_BYTES)) == len(data)
        if is_literal:
            kinds |= kinds_of_column.literal
        else:
            kinds |= kinds_of_column.escaped
            try:
                entries = [orjson.dumps(entry.decode()) for entry in entries]
            except UnicodeDecodeError:
                return None
        parts.append(entries)
    width = len(parts)
    filling: list[Any] = [None] * (width * count)
    for number, part in enumerate(parts):
        filling[number::width] = part
    return _made(JsonRecords, (_template(count, kinds) % tuple(filling), count, payload_bytes))


class _Kinds(NamedTuple):
    """Bits of one column in the argument `kinds` of `_template`: its texts need no escapes, or are escaped."""

    literal: int
    escaped: int


_KEY, _VALUE, _TAG = _KINDS = (_Kinds(1, 2), _Kinds(4, 8), _Kinds(16, 32))
_NO_TEXTS: Final = 0
_ESCAPED_BYTES: Final = b'"\\' + bytes(range(0x20))
_SHORT_BYTES: Final = 4 * KIB
"""Up to this length `bytes.translate` costs less than orjson, whose code is rarely in the processor's caches."""
_made: Final = tuple.__new__
"""Creates a named tuple; its own constructor is a slower wrapper of this."""


@lru_cache(maxsize=128)
def _template(count: int, kinds: int) -> bytes:
    """Return the format string of an array of records, with a placeholder for each offset, timestamp and text."""
    row = b'{"offset":%%d,"timestamp_ms":%%b,"key":%b,"value":%b,"value_encoding":"utf8"%b}' % (
        _place(kinds, _KEY),
        _place(kinds, _VALUE),
        b',"tag":' + _place(kinds, _TAG) if kinds & (_TAG.literal | _TAG.escaped) else b"",
    )
    return b"[%b]" % b",".join([row] * count)


def _place(kinds: int, column: _Kinds) -> bytes:
    """Return the placeholder of a text."""
    if kinds & column.literal:
        return b'"%b"'
    return b"%b" if kinds & column.escaped else b"null"
