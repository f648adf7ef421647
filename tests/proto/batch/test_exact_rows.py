"""Equal rows have equal bytes, whatever memory they come from, and their weight bounds the size of the bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import rows_of_schema

from tidelog_proto.batch.exact_rows import exact_values, row_weights, tight_rows
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import DELETED, stored_columns
from tidelog_proto.schema.arrow_types import value_type
from tidelog_proto.schema.data_types import BOOL, INT32, LIST, STRING, STRUCT, decimal128
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.topic_schema import Schema


def message_of(values: Any) -> bytes:
    columns = pa.RecordBatch.from_arrays([values], names=["value"])
    return bytes(memoryview(columns.serialize()))


def garbled(array: Any, rng: np.random.Generator) -> Any:
    """Return the same values in other memory: behind an offset, with bytes under nulls."""
    count, kind = len(array), array.type
    if pa.types.is_struct(kind):
        children = [garbled(array.field(at), rng) for at in range(kind.num_fields)]
        if array.null_count:
            # Children of a null struct have no values.
            other = [garbled(child.take(pa.array(rng.permutation(count))), rng) for child in children]
            here = array.is_valid()
            children = [pc.if_else(here, one, two) for one, two in zip(children, other, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    pair: Any = pa.concat_arrays([array, array])
    return pair.slice(count)


@given(schema=schemas(), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=150)
def test_the_bytes_depend_on_the_values_only(schema: Schema, seed: int, data: st.DataObject) -> None:
    rows = data.draw(rows_of_schema(schema, tombstones=False))
    layout = row_layout(schema)
    value: Any = stored_columns(layout, rows).column("value")
    deleted = pa.array([data.draw(st.booleans()) for _ in range(len(value))])
    children = [value.field(at) for at in range(value.type.num_fields)]
    value = pa.StructArray.from_arrays(children, fields=list(value.type), mask=deleted)
    exact = exact_values(value)
    exact.validate(full=True)
    assert repr(exact.to_pylist()) == repr(value.to_pylist())
    other = garbled(value, np.random.default_rng(seed))
    assert repr(other.to_pylist()) == repr(value.to_pylist())
    assert message_of(exact_values(other)) == message_of(exact)
    assert message_of(exact_values(exact)) == message_of(exact)
    cut = data.draw(st.integers(0, len(value)))
    parts: Any = pa.concat_arrays([value.slice(0, cut), exact.slice(cut)])
    assert message_of(exact_values(parts)) == message_of(exact)
    assert row_weights(other).tolist() == row_weights(exact).tolist() == row_weights(value).tolist()


@given(schema=schemas(), data=st.data())
@settings(max_examples=100)
def test_the_weight_is_at_least_the_size_without_bitmaps(schema: Schema, data: st.DataObject) -> None:
    value: Any = stored_columns(row_layout(schema), data.draw(rows_of_schema(schema))).column("value")
    exact = exact_values(value)
    assert sizes_of(exact) <= int(row_weights(exact).sum())


def sizes_of(array: Any) -> int:
    """Return the bytes of offsets but the first one, and of data, of an array and everything below it."""
    count, kind = len(array), array.type
    if pa.types.is_struct(kind):
        return sum(sizes_of(array.field(at)) for at in range(kind.num_fields))
    if pa.types.is_list(kind):
        return 4 * count + sizes_of(array.values)
    size = array.buffers()[-1].size if array.buffers()[-1] is not None else 0
    return 4 * count + size if pa.types.is_string(kind) or pa.types.is_binary(kind) else size


def test_zeros_lie_under_nulls() -> None:
    schema = schema_of(
        Field(0, "n", INT32),
        Field(0, "d", decimal128(38, 0)),
        Field(0, "s", STRING),
        Field(0, "st", STRUCT, children=(Field(0, "b", BOOL), Field(0, "t", STRING, required=True))),
    )
    count, ones = 3, pa.py_buffer(b"\xff" * 64)
    offsets = pa.py_buffer(np.array([0, 2, 4, 6], np.int32).tobytes())
    none = pa.py_buffer(b"\x00")

    def array(kind: pa.DataType, *buffers: pa.Buffer) -> Any:
        return pa.Array.from_buffers(kind, count, [none, *buffers], count)

    flags, text = array(pa.bool_(), ones), array(pa.string(), offsets, pa.py_buffer(b"abcdef"))
    kind = value_type(schema)
    nested = pa.Array.from_buffers(kind.field(3).type, count, [none], count, 0, [flags, text])
    children = [array(pa.int32(), ones), array(pa.decimal128(38, 0), ones), text, nested]
    value = pa.Array.from_buffers(kind, count, [None], 0, 0, children)
    exact: Any = exact_values(value)
    found = [exact.field(at).buffers() for at in range(3)]
    assert [bytes(each[-1]) for each in found] == [bytes(12), bytes(48), b""]
    assert bytes(found[2][1]) == bytes(16)
    assert exact.field(3).field(0).null_count == exact.field(3).field(1).null_count == 0
    assert bytes(exact.field(3).field(0).buffers()[1]) == b"\0"
    assert row_weights(value).tolist() == [4 + 16 + 4 + 1 + 4] * count


def test_a_tombstone_weighs_what_is_stored_for_it() -> None:
    kind = value_type(EVERY_TYPE)
    gone = pa.nulls(8, kind)
    assert int(row_weights(gone).sum()) >= sizes_of(exact_values(gone)) > 8 * 90


def test_tight_rows_keep_what_is_tight() -> None:
    schema = schema_of(Field(0, "l", LIST, children=(Field(0, "item", STRING),)))
    layout = row_layout(schema)
    columns = stored_columns(layout, pa.RecordBatch.from_pydict({"l": [["a"], [], [], ["b", "c"]]}))
    assert tight_rows(columns) is columns
    assert tight_rows(columns.slice(0, 2)).column("value").to_pylist() == [{"l": ["a"]}, {"l": []}]
    loose = columns.slice(1, 2)
    tight = tight_rows(loose)
    assert tight is not loose
    assert tight.equals(loose)
    assert DELETED not in tight.schema.names
