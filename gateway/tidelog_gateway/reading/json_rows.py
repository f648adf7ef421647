"""Vectorized encoding of records as JSON objects, with the same members as those of `json_encoding.rows_of`."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_gateway.reading.text_columns import escaped, joined, quoted
from tidelog_gateway.reading.values import ValueEncoding, texts_of

_US_PER_MS: Final[Any] = pa.scalar(1000, pa.int64())
_BASE64_MEMBER: Final = ',"key_encoding":"base64"'


def json_rows(columns: pa.RecordBatch, encoding: ValueEncoding | None, *, numbered: bool, one_line: bool) -> Any:
    """Return each record as a JSON object, as a column of text.

    Args:
        columns: columns of `tidelog_proto.batch.record_schema.RECORDS_SCHEMA`.
        encoding: encoding of all values, which each value must fit; None: chosen for each value.
        numbered: whether a record has the member `partition`.
        one_line: whether records must not contain line breaks; JSON values with line breaks are then encoded as text.
    """
    parts: list[Any] = ["{"]
    if numbered:
        parts += ['"partition":', columns.column("partition").cast(pa.string()), ","]
    keys = texts_of(columns.column("key"))
    parts += ['"offset":', columns.column("offset").cast(pa.string())]
    parts += [',"timestamp_ms":', milliseconds(columns).cast(pa.string())]
    parts += [',"key":', quoted(keys.texts), ',"value":', *_value(columns.column("value"), encoding, one_line=one_line)]
    if keys.in_base64 is not None:
        parts.append(pc.if_else(pa.array(keys.in_base64), _BASE64_MEMBER, ""))
    tags: Any = columns.column("tag")
    if tags.null_count < len(tags):
        parts.append(pc.fill_null(joined(',"tag":', '"', escaped(tags), '"'), ""))
    headers = header_texts(columns.column("headers"))
    if headers is not None:
        parts.append(pc.fill_null(joined(',"headers":', headers), ""))
    return joined(*parts, "}")


def milliseconds(columns: pa.RecordBatch) -> Any:
    """Return the timestamps in milliseconds."""
    stamps: Any = columns.column("timestamp")
    return pc.divide(stamps.view(pa.int64()), _US_PER_MS)


def header_texts(lists: Any) -> Any:
    """Return each record's headers as a JSON array, null for a record without headers; None if no record has any."""
    pairs = lists.flatten()
    if not len(pairs):
        return None
    values = texts_of(pairs.field("value"))
    marks: Any = "" if values.in_base64 is None else pc.if_else(pa.array(values.in_base64), ',"base64"', "")
    each = joined('["', escaped(pairs.field("key")), '",', quoted(values.texts), marks, "]")
    counts = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    lists_of_text: Any = cast("Any", pa.ListArray).from_arrays(pa.array(ends), each)
    arrays = joined("[", pc.binary_join(lists_of_text, ","), "]")
    return pc.if_else(pa.array(counts > 0), arrays, pa.scalar(None, pa.string()))


def _value(column: Any, encoding: ValueEncoding | None, *, one_line: bool) -> list[Any]:
    """Return the parts of each record from its value to its member `value_encoding`."""
    values = texts_of(column, encoding)
    if encoding == "json":
        as_text = pc.is_null(column)
        if one_line:
            as_text = pc.or_kleene(as_text, pc.match_substring_regex(values.texts, "[\\r\\n]"))
        if pc.any(as_text).as_py():
            texts = pc.if_else(as_text, quoted(values.texts), values.texts)
            return [texts, ',"value_encoding":"', pc.if_else(as_text, "utf8", "json"), '"']
        return [values.texts, ',"value_encoding":"json"']
    if values.in_base64 is None:
        return [quoted(values.texts), ',"value_encoding":"utf8"']
    names = pc.if_else(pc.and_(pa.array(values.in_base64), pc.is_valid(column)), "base64", "utf8")
    return [quoted(values.texts), ',"value_encoding":"', names, '"']
