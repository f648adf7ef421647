from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS
from tests.proto.filters.reference_filter import expressions, is_true, plain_rows
from tests.proto.schema_chains import chains
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema

from tidelog_proto.batch import projection
from tidelog_proto.batch.derived_batch import kept_rows
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters import filtered_batch
from tidelog_proto.filters.expression import EVERY_ROW, NO_ROW, Expression, Leaf, Operator
from tidelog_proto.filters.expression_messages import BoundFilter, filter_of_message, message_of_filter
from tidelog_proto.filters.filtered_batch import SPARSE_SHARE, check_filter, filter_rows
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.schema.data_types import FLOAT64, INT8, INT64, STRING
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

GREATER, EQUAL = Operator.GREATER, Operator.EQUAL


@pytest.fixture
def small_batches_are_cut() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(projection, "WHOLE_BYTES_MAX", 0)
        yield


def sent(raw: Any, bound: BoundFilter, layouts: Any, **options: Any) -> Any:
    """Return what a node sends for a filter that was on the wire."""
    received = filter_of_message(message_of_filter(bound))
    check_filter(received, layouts)
    return filter_rows(raw, received, key=options.get("key"), tag=options.get("tag"), layouts=layouts)


@pytest.mark.usefixtures("small_batches_are_cut")
@given(chains(), st.data())
@settings(max_examples=150, deadline=None)
def test_the_reader_of_a_filtered_batch_has_the_rows_of_the_whole_one(chain: list[Schema], data: st.DataObject) -> None:
    target, source = chain[-1], data.draw(st.sampled_from(chain))
    layouts = layouts_of(*chain)
    raw = encoded(
        layouts[source.number], data.draw(rows_of_schema(source)), data.draw(st.sampled_from(CODECS)), base=10
    )
    if data.draw(st.booleans()):
        whole = parsed(raw, layouts)
        keep = np.array([data.draw(st.booleans()) for _ in range(len(whole))])
        raw = bytes(kept_rows(whole, keep) or raw)
    expression = data.draw(expressions(target))
    whole = parsed(raw, layouts)
    rows = dict(zip(whole.offset_list(), plain_rows(whole, target), strict=True))
    exact = [offset for offset, row in rows.items() if is_true(expression, row)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(filtered_batch, "SPARSE_SHARE", data.draw(st.sampled_from([1, 2, 16])))
        found = sent(raw, BoundFilter(target.number, expression), layouts)
    if found is None:
        assert exact == []
        return
    received = parsed(bytes(found), layouts)
    assert (received.base_offset, received.end_offset) == (whole.base_offset, whole.end_offset)
    assert set(exact) <= set(received.offset_list())
    left = matching_rows(received, expression)
    kept = received if left is None else received.keeping(left)
    assert list(kept.offset_list()) == exact
    assert repr(plain_rows(kept, target)) == repr([rows[offset] for offset in exact])


def numbers(codec: Codec = Codec.NONE, **columns: Any) -> tuple[bytes, Mapping[int, Any]]:
    schema = schema_of(
        Field(0, "k", STRING, required=True, role=Role.KEY), Field(0, "n", INT64), Field(0, "f", FLOAT64)
    )
    layout = row_layout(schema)
    count = 64
    values = {"k": ["a", "b"] * 32, "n": range(count), "f": [float(n) for n in range(count)]} | columns
    rows = pa.RecordBatch.from_pydict({name: list(values[name]) for name in values}, schema=layout.row_schema)
    return encoded(layout, rows, codec, base=100), {1: layout}


@pytest.mark.parametrize("codec", CODECS)
def test_few_rows_are_sent_alone_and_many_with_the_whole_batch(codec: Codec) -> None:
    raw, layouts = numbers(codec)
    few = 64 // SPARSE_SHARE
    found = sent(raw, BoundFilter(1, Leaf(2, GREATER, (63 - few,))), layouts)
    assert parsed(bytes(found), layouts).offset_list() == [164 - few + n for n in range(few)]
    assert sent(raw, BoundFilter(1, Leaf(2, GREATER, (62 - few,))), layouts) is raw
    assert sent(raw, BoundFilter(1, Leaf(2, GREATER, (63,))), layouts) is None
    assert sent(raw, BoundFilter(1, Leaf(2, Operator.IS_NULL)), layouts) is None
    assert sent(raw, BoundFilter(1, NO_ROW), layouts) is None
    assert sent(raw, BoundFilter(1, EVERY_ROW), layouts) is raw


def test_nodes_keep_nan_in_every_comparison() -> None:
    raw, layouts = numbers(f=[float("nan") if n == 7 else 0.0 for n in range(64)])
    for operator in (EQUAL, Operator.NOT_EQUAL, GREATER, Operator.LESS, Operator.IS_IN):
        found = sent(raw, BoundFilter(1, Leaf(3, operator, (0.0,))), layouts)
        assert 107 in parsed(bytes(found), layouts).offset_list()
    found = sent(raw, BoundFilter(1, Leaf(3, GREATER, (0.0,))), layouts)
    assert parsed(bytes(found), layouts).offset_list() == [107]


def test_keys_and_rows_are_filtered_together() -> None:
    raw, layouts = numbers()
    found = sent(raw, BoundFilter(1, Leaf(2, GREATER, (9,))), layouts, key=b"b")
    assert parsed(bytes(found), layouts).offset_list() == [101 + n for n in range(10, 64, 2)]
    assert sent(raw, BoundFilter(1, Leaf(2, GREATER, (9,))), layouts, key=b"c") is None
    assert sent(raw, BoundFilter(1, Leaf(2, GREATER, (90,))), layouts, key=b"b") is None


def test_batches_of_later_schemas_are_sent_whole() -> None:
    """Under the filter's int8, `n > 200` is true of no row; the later schema has larger numbers."""
    old = schema_of(Field(0, "n", INT8))
    new = schema_of(Field(0, "n", INT64), number=2)
    layouts = layouts_of(old, new)
    rows = pa.RecordBatch.from_pydict({"n": [1, 300]}, schema=layouts[2].row_schema)
    raw = encoded(layouts[2], rows, base=0)
    never: Expression = NO_ROW
    assert sent(raw, BoundFilter(1, never), layouts) is raw
    assert sent(raw, BoundFilter(2, never), layouts) is None


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (Leaf(9, EQUAL, (1,)), "schema 1 has no field with the id 9"),
        (Leaf(2, EQUAL, (b"x",)), "field 'n' has the type int64; it was compared with b'x'"),
        (Leaf(2, EQUAL, (True,)), "field 'n' has the type int64; it was compared with True"),
    ],
)
def test_filters_that_do_not_fit_the_schema_are_refused(leaf: Leaf, message: str) -> None:
    _, layouts = numbers()
    with pytest.raises(ProtocolError, match=message):
        check_filter(BoundFilter(1, leaf), layouts)
    with pytest.raises(ProtocolError, match="the topic is not typed"):
        check_filter(BoundFilter(1, leaf), None)
