"""Derived, filtered and thinned batches of typed topics."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, NOW_US
from tests.proto.schemas import schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema, with_columns

from tidelog_proto.batch.deduplication import without_dropped
from tidelog_proto.batch.derived_batch import DERIVED_WEIGHT_BYTES_MAX, Deriver, filter_batch
from tidelog_proto.batch.gathered_batch import PART_BYTES_MIN, encode_gathered
from tidelog_proto.batch.header import Codec, Flags, unpack_header
from tidelog_proto.batch.newest_row import newest_row, record_alone
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch
from tidelog_proto.batch.row_layout import RowLayout, row_layout
from tidelog_proto.batch.typed_rows import DELETED, rows_of, stored_columns
from tidelog_proto.batch.typed_verification import verify_typed, verify_typed_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_UNCOMPRESSED_BYTES_MAX
from tidelog_proto.schema.data_types import INT32, INT64, LIST, STRING, STRUCT, decimal128
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

BASE = 100
OLD = schema_of(Field(0, "key", STRING, required=True, role=Role.KEY), Field(0, "n", INT32))
NEW = Schema(2, 4, (OLD.fields[0], Field(2, "n", INT64), Field(3, "note", STRING)))
LAYOUTS = layouts_of(OLD, NEW)


def derived(batches: list[RecordBatch], keeps: list[Any]) -> list[bytes]:
    deriver = Deriver(batches[0].base_offset, epoch=3)
    made: list[bytearray] = []
    for batch, keep in zip(batches, keeps, strict=True):
        made += deriver.add(batch, keep)
    return [bytes(one) for one in made + deriver.finish()]


def rows(layout: RowLayout, *numbers: int | None) -> pa.RecordBatch:
    """Return rows with keys like their numbers; None for a tombstone."""
    keys = pa.array([str(number) for number in numbers])
    values = pa.array(numbers, layout.row_schema.field("n").type)
    deleted = pa.array([number is None for number in numbers])
    return pa.RecordBatch.from_pydict({"key": keys, "n": values, DELETED: deleted})


@given(schema=schemas(), data=st.data())
@settings(max_examples=120)
def test_derived_bytes_depend_on_the_survivors_only(schema: Schema, data: st.DataObject) -> None:
    """Divided differently, compressed differently, derived in two rounds: the same bytes."""
    layouts = layouts_of(schema)
    given_rows = data.draw(rows_of_schema(schema))
    count = given_rows.num_rows
    keep = np.array([data.draw(st.booleans()) for _ in range(count)])
    codecs = st.sampled_from(CODECS)
    whole = parsed(encoded(layouts[1], given_rows, data.draw(codecs), base=BASE), layouts)
    once = derived([whole], [keep])
    cut = data.draw(st.integers(0, count))
    parts = [(at, given_rows.slice(at, end - at)) for at, end in ((0, cut), (cut, count)) if end > at]
    two = [parsed(encoded(layouts[1], part, data.draw(codecs), base=BASE + at), layouts) for at, part in parts]
    assert derived(two, [keep[at : at + part.num_rows] for at, part in parts]) == once
    fewer = [derived([whole], [np.ones(count, np.bool_)])]
    again = [parsed(one, layouts) for one in fewer[0]]
    assert derived(again, [keep]) == once
    found: list[dict[str, Any]] = []
    for one in once:
        header = verify_typed_stored(one, layouts)
        assert header.schema_id == (1 if header.record_count else 0)
        found += rows_of(parsed(one, layouts), tombstones=True).to_pylist() if header.record_count else []
    expected = [row for row, kept in zip(rows_of(whole, tombstones=True).to_pylist(), keep, strict=True) if kept]
    assert repr(found) == repr(expected)


def test_bytes_under_nulls_do_not_count() -> None:
    """Three rows: one with a number, a tombstone, one without a number; with other memory under each null."""
    layout = LAYOUTS[2]
    keys = pa.array([b"a", b"b", b"c"])
    made: list[list[bytes]] = []
    for bits, numbers, notes in (
        (0b001, [5, 0, 0], ["x", "", "z"]),
        (0b011, [5, 77, 88], ["x", "under a tombstone", "z"]),
        (0b001, [5, -1, 99], ["x", None, "z"]),
    ):
        data = pa.py_buffer(struct.pack("<3q", *numbers))
        count = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(bytes([bits])), data])
        value = pa.StructArray.from_arrays(
            [count, pa.array(notes)], fields=list(layout.value_type), mask=pa.array([False, True, False])
        )
        columns = pa.RecordBatch.from_arrays([keys, value], names=["key", "value"])
        source = with_columns(layout, columns, base_offset=BASE, append_timestamp_us=1)
        assert verify_typed(source, LAYOUTS).record_count == 3
        made.append(derived([parsed(source, LAYOUTS)], [None]))
    assert made[0] == made[1] == made[2]
    (only,) = made[0]
    assert [row["n"] for row in rows_of(parsed(only, LAYOUTS), tombstones=True).to_pylist()] == [5, None, None]


def test_a_batch_ends_where_the_schema_changes() -> None:
    sources = [
        parsed(encoded(LAYOUTS[number], rows(LAYOUTS[number], *numbers), base=base), LAYOUTS)
        for number, base, numbers in ((1, 100, (1, 2)), (1, 102, (3,)), (2, 103, (4, None)), (1, 105, (6,)))
    ]
    made = [parsed(one, LAYOUTS) for one in derived(sources, [None] * 4)]
    found = [
        (each.header.schema_id, each.base_offset, [row["n"] for row in rows_of(each, tombstones=True).to_pylist()])
        for each in made
    ]
    assert found == [(1, 100, [1, 2, 3]), (2, 103, [4, None]), (1, 105, [6])]
    assert [each.header.schema_digest for each in made] == [OLD.digest, NEW.digest, OLD.digest]
    assert rows_of(made[0]).schema.field("n").type == pa.int32()


def test_a_canonical_batch_is_a_batch_of_its_own() -> None:
    control = bytearray(encode_batch(columns_of([b"v"]), now_us=NOW_US, control=True).to_bytes())
    header = unpack_header(control)._replace(base_offset=101, append_timestamp_us=1)
    sources = [
        parsed(encoded(LAYOUTS[1], rows(LAYOUTS[1], 1), base=100), LAYOUTS),
        RecordBatch.parse(header.pack() + control[128:]),
    ]
    made = [parsed(one, LAYOUTS) for one in derived(sources, [None, None])]
    assert [(each.header.schema_id, each.control) for each in made] == [(1, False), (0, True)]


def test_a_range_without_survivors_has_no_schema() -> None:
    source = parsed(encoded(LAYOUTS[1], rows(LAYOUTS[1], 1, 2), base=BASE), LAYOUTS)
    (only,) = derived([source], [np.zeros(2, np.bool_)])
    assert (only[4], verify_typed_stored(only, LAYOUTS).record_count) == (1, 0)


def test_nulls_of_wide_structs_do_not_make_batches_too_large() -> None:
    wide = tuple(Field(0, f"f{at}", decimal128(38, 0)) for at in range(250))
    item = Field(0, "item", STRUCT, children=wide)
    schema = schema_of(Field(0, "l", LIST, children=(item,)))
    layouts = layouts_of(schema)
    lists = pa.array([[None] * 8] * 1200, row_layout(schema).row_schema.field("l").type)
    source = parsed(encoded(layouts[1], pa.RecordBatch.from_pydict({"l": lists}), Codec.LZ4, base=0), layouts)
    made = derived([source], [None])
    lengths = [unpack_header(one, typed=True).uncompressed_length for one in made]
    assert len(made) > 30
    assert max(lengths) < 2 * DERIVED_WEIGHT_BYTES_MAX < BATCH_UNCOMPRESSED_BYTES_MAX
    assert sum(len(parsed(one, layouts)) for one in made) == 1200


def test_a_derived_batch_of_a_producer_is_refused_and_one_of_a_node_is_taken() -> None:
    source = parsed(encoded(LAYOUTS[1], rows(LAYOUTS[1], 1, 2), base=BASE), LAYOUTS)
    (one,) = derived([source], [np.array([True, False])])
    assert verify_typed_stored(one, LAYOUTS).flags & Flags.DERIVED
    with pytest.raises(ProtocolError, match="only nodes may send"):
        verify_typed(one, LAYOUTS)


def test_filters_need_the_schemas() -> None:
    raw = encoded(LAYOUTS[1], rows(LAYOUTS[1], 1, 2, 3), base=BASE)
    found = filter_batch(raw, key=b"2", layouts=LAYOUTS)
    assert found is not None
    batch = parsed(bytes(found), LAYOUTS)
    assert (batch.offset_list(), rows_of(batch).to_pylist()) == ([101], [{"key": "2", "n": 2}])
    with pytest.raises(ProtocolError, match="which is not supported here"):
        filter_batch(raw, key=b"2")


@pytest.mark.parametrize("codec", CODECS)
def test_thinned_batches_keep_their_schema_while_they_have_records(codec: Codec) -> None:
    source = parsed(encoded(LAYOUTS[1], rows(LAYOUTS[1], 1, 2, 3), codec), LAYOUTS)
    thinned = parsed(without_dropped(source, np.array([True, False, True])), LAYOUTS)
    assert (thinned.header.schema_id, thinned.header.sequence_span, thinned.header.codec) == (1, 3, codec)
    assert rows_of(thinned).column("n").to_pylist() == [1, 3]
    nothing = RecordBatch.parse(without_dropped(source, np.zeros(3, np.bool_)))
    assert (nothing.control, nothing.header.schema_id, nothing.header.sequence_span) == (True, 0, 3)


@pytest.mark.parametrize("codec", CODECS)
def test_the_newest_record_of_a_key_is_sent_alone_with_its_schema(codec: Codec) -> None:
    source = parsed(encoded(LAYOUTS[2], rows(LAYOUTS[2], 1, 2, None, 2, 4), codec, base=BASE), LAYOUTS)
    row = newest_row(source, key=b"2", tag=None)
    assert row == 3
    alone = record_alone(source, row)
    assert verify_typed_stored(alone, LAYOUTS).schema_id == 2
    found = parsed(bytes(alone), LAYOUTS)
    assert (found.offset_list(), found.end_offset) == ([BASE + 3], BASE + 5)
    assert rows_of(found).to_pylist() == [{"key": "2", "n": 2, "note": None}]
    gone = newest_row(source, key=b"None", tag=None)
    assert gone == 2
    (deleted,) = rows_of(parsed(bytes(record_alone(source, gone)), LAYOUTS), tombstones=True).to_pylist()
    assert (deleted["key"], deleted[DELETED]) == ("None", True)


def test_typed_columns_are_not_gathered_as_bytes() -> None:
    schema = schema_of(Field(0, "s", STRING))
    texts = pa.RecordBatch.from_pydict({"s": ["x" * PART_BYTES_MIN]})
    columns = stored_columns(row_layout(schema), texts)
    assert columns.schema.names == ["value"]
    assert encode_gathered([columns, columns], now_us=NOW_US) is None
    plain = columns_of([b"x" * PART_BYTES_MIN])
    assert encode_gathered([plain, columns], now_us=NOW_US) is None
    assert encode_gathered([plain, plain], now_us=NOW_US) is not None


def joined_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def test_columns_of_one_schema_are_not_encoded_under_another() -> None:
    """Producers join columns of one schema only: the types of others differ, or the number that they were made for."""
    joined = joined_batches([stored_columns(LAYOUTS[1], rows(LAYOUTS[1], *each)) for each in ((1, 2), (3,))])
    batch = parsed(encode_batch(joined, now_us=NOW_US, layout=LAYOUTS[1]).to_bytes(), LAYOUTS)
    assert [row["n"] for row in rows_of(batch).to_pylist()] == [1, 2, 3]
    with pytest.raises(TypeError, match="expected the columns of schema 2"):
        encode_batch(joined, now_us=NOW_US, layout=LAYOUTS[2])
    with pytest.raises(pa.ArrowInvalid, match="Schema"):
        joined_batches([joined, stored_columns(LAYOUTS[2], rows(LAYOUTS[2], 1))])
