"""Validation of typed batches: each batch decodes to rows that fit the schema, or is refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, NOW_US, header_crc_fixed
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, retyped, rows_of_schema, spliced, with_columns

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import typed_verification
from tidelog_proto.batch.header import BatchHeader, Codec, Flags
from tidelog_proto.batch.key_bytes import DATE_DAYS_MAX, DATE_DAYS_MIN, STAMP_US_MAX, STAMP_US_MIN
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.batch.row_layout import Layouts, row_layout
from tidelog_proto.batch.typed_rows import rows_of, stored_columns
from tidelog_proto.batch.typed_verification import verify_typed, verify_typed_stored
from tidelog_proto.batch.verification import verify_batch, verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, TAG_BYTES_MAX
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import (
    BOOL,
    DATE32,
    INT8,
    INT32,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    Kind,
    decimal128,
)
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

FLAT = schema_of(
    Field(0, "carrier", STRING, required=True, role=Role.KEY),
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "kind", STRING, role=Role.TAG),
    Field(0, "n", INT32, required=True),
    Field(0, "day", DATE32),
    Field(0, "price", decimal128(5, 2)),
    Field(0, "note", STRING),
    Field(0, "flag", BOOL),
)
LAYOUTS = layouts_of(FLAT)
FLAT_ROW = {"carrier": "UA", "at": NOW_US, "kind": "t", "n": 5, "day": 9, "price": None, "note": "é", "flag": True}
ITEMS = schema_of(
    Field(0, "n", INT32),
    Field(
        0,
        "l",
        LIST,
        children=(Field(0, "item", STRUCT, children=(Field(0, "a", STRING, required=True), Field(0, "day", DATE32))),),
    ),
)


@pytest.fixture(autouse=True, scope="module", params=[1, 1024], ids=["field by field", "together"])
def ways_of_validation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let Arrow validate small batches in both ways; the second is that of batches with at least so many records."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typed_verification, "FIELD_BY_FIELD_RECORDS", request.param)
        yield


SAMPLES: dict[Kind, Any] = {
    Kind.BOOL: True,
    Kind.STRING: "é",
    Kind.BINARY: b"b",
    Kind.DECIMAL128: Decimal(1),
    Kind.LIST: [1],
    Kind.STRUCT: {"city": "x"},
}


def flat_rows(count: int = 1, **columns: Any) -> pa.RecordBatch:
    layout = LAYOUTS[1]
    values = {name: [value] * count for name, value in FLAT_ROW.items()} | columns
    return pa.RecordBatch.from_pydict(values, schema=layout.row_schema)


def refusal(batch: bytes, layouts: Layouts = LAYOUTS) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        verify_typed(batch, layouts)
    return refused.value


def fits(field: Field, value: Any) -> bool:
    """Return whether a Python value may be one of a field, by rules that do not use Arrow."""
    if value is None:
        return not field.required
    kind, precision, scale = field.type
    if kind is Kind.LIST:
        return all(fits(field.children[0], item) for item in value)
    if kind is Kind.STRUCT:
        return all(fits(child, value[child.name]) for child in field.children)
    if kind is Kind.DECIMAL128:
        return bool(value.scaleb(scale, Context(prec=50)).copy_abs() < 10**precision)
    bits = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}.get(kind)
    return bits is None or bool(-(1 << bits - 1) <= value < 1 << bits - 1)


def outcome(batch: bytes | bytearray, layouts: Layouts) -> None:
    """Let a batch be refused in order, or be taken and then decode to rows that fit the schema: nothing else."""
    try:
        header = verify_typed_stored(batch, layouts)
    except ProtocolError:
        return
    found = rows_of(parsed(batch, layouts), tombstones=True)
    assert found.num_rows == header.record_count
    # Python's dates and times exist in the years 1 to 9999 only: others raise here.
    for row in found.to_pylist():
        for field in layouts[header.schema_id].schema.fields:
            deleted = row["_deleted"] and field.role in {Role.NONE, Role.TAG}
            assert deleted or fits(field, row[field.name])


@given(schema=schemas(), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=200)
def test_splices_with_matching_crcs(schema: Schema, codec: Codec, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    raw = bytearray(encoded(layouts[1], data.draw(rows_of_schema(schema)), codec))
    data.draw(st.composite(lambda draw: spliced(draw, raw))())
    outcome(retyped(bytes(raw)), layouts)


@given(schema=schemas(), data=st.data())
@settings(max_examples=60)
def test_cuts_and_tails_with_matching_crcs(schema: Schema, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    raw = encoded(layouts[1], data.draw(rows_of_schema(schema)))
    end = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
    assert refusal(retyped(raw[:end]), layouts).code == pb.CORRUPT_BATCH
    assert refusal(retyped(raw + bytes(8)), layouts).code == pb.CORRUPT_BATCH


@given(schema=schemas(), other=schemas(), data=st.data())
@settings(max_examples=100)
def test_rows_of_another_schema_under_this_ones_digest(schema: Schema, other: Schema, data: st.DataObject) -> None:
    """The digest only excludes mistakes: a producer may send any bytes under it."""
    layouts = layouts_of(schema)
    foreign = row_layout(other)
    columns = stored_columns(foreign, data.draw(rows_of_schema(other)))
    outcome(with_columns(layouts[1], columns), layouts)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("schema", [FLAT, EVERY_TYPE], ids=["flat", "every type"])
def test_every_damaged_byte_of_a_body_with_matching_crcs(schema: Schema, count: int) -> None:
    layouts = layouts_of(schema)
    row = {field.name: SAMPLES.get(field.type.kind, 1) for field in schema.fields}
    made = pa.RecordBatch.from_pydict(
        {field.name: pa.array([row[field.name]] * count, arrow_type(field)) for field in schema.fields}
    )
    good = encoded(layouts[1], made)
    verify_typed(good, layouts)
    for at in range(HEADER_BYTES, len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            outcome(retyped(bytes(bad)), layouts)


def test_every_damaged_header_byte_with_a_matching_crc() -> None:
    good = encoded(LAYOUTS[1], flat_rows(3))
    for at in range(124):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            outcome(header_crc_fixed(bad), LAYOUTS)


def test_every_damaged_byte_is_refused_by_a_crc() -> None:
    good = encoded(LAYOUTS[1], flat_rows())
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << (at % 8)
        assert refusal(bytes(bad)).code in {pb.CORRUPT_BATCH, pb.UNSUPPORTED_BATCH}


# ------------------------------------------------------------------- number, digest, topic


def test_the_number_is_known() -> None:
    raw = encoded(LAYOUTS[1], flat_rows())
    assert verify_typed(raw, LAYOUTS).schema_id == 1
    error = refusal(raw, {2: LAYOUTS[1]})
    assert (error.code, "schema 1, which is not known" in error.message) == (pb.UNSUPPORTED_BATCH, True)


def test_the_digest_is_that_of_the_schema() -> None:
    error = refusal(retyped(encoded(LAYOUTS[1], flat_rows()), schema_digest=LAYOUTS[1].digest ^ 1))
    assert (error.code, "reload the schemas" in error.message) == (pb.CORRUPT_BATCH, True)


def test_a_typed_topic_takes_no_untyped_batches_but_those_for_the_broker() -> None:
    columns = columns_of([b"v"])
    error = refusal(encode_batch(columns, now_us=NOW_US).to_bytes())
    assert (error.code, "the topic is typed" in error.message) == (pb.UNSUPPORTED_BATCH, True)
    control = encode_batch(columns, now_us=NOW_US, control=True).to_bytes()
    assert verify_typed(control, LAYOUTS).flags & Flags.CONTROL
    assert verify_typed_stored(control, LAYOUTS).flags & Flags.CONTROL
    bad = bytearray(control)
    bad[-1] ^= 1
    assert refusal(bytes(bad)).code == pb.CORRUPT_BATCH


def test_an_untyped_topic_takes_no_typed_batches() -> None:
    raw = encoded(LAYOUTS[1], flat_rows())
    for verify in (verify_batch, verify_stored):
        with pytest.raises(ProtocolError) as refused:
            verify(raw)
        assert refused.value.code == pb.UNSUPPORTED_BATCH


def test_producers_send_no_derived_batches() -> None:
    raw = retyped(
        encoded(LAYOUTS[1], flat_rows()),
        flags=int(Flags.DERIVED | Flags.TIMESTAMP | Flags.VALUE),
        producer_id=0,
        base_sequence=0,
    )
    assert "only nodes may send" in refusal(raw).message


# ------------------------------------------------------------------- arrays and buffers


def value_of(schema: Schema, *children: pa.Array[Any], valid: list[bool] | None = None) -> pa.RecordBatch:
    """Return the column `value` of any children, whatever the schema says."""
    names = [field.name for field in schema.value_fields][: len(children)]
    names += [f"more{at}" for at in range(len(children) - len(names))]
    mask = None if valid is None else pa.array([not each for each in valid])
    value = pa.StructArray.from_arrays(list(children), names=names, mask=mask)
    return pa.RecordBatch.from_arrays([value], names=["value"])


PAIR = schema_of(Field(0, "n", INT32, required=True), Field(0, "s", STRING))
NUMBERS = pa.array([1, 2], pa.int32())
TEXTS = pa.array(["a", None])


def test_the_honest_batch_of_the_cases_below_is_taken() -> None:
    layouts = layouts_of(PAIR)
    assert verify_typed(with_columns(layouts[1], value_of(PAIR, NUMBERS, TEXTS)), layouts).record_count == 2


@pytest.mark.parametrize(
    ("children", "text"),
    [
        ([NUMBERS], "arrays in"),
        ([NUMBERS, TEXTS, NUMBERS], "arrays in"),
        ([NUMBERS, pa.array(["a", None], pa.large_string())], "bytes of offsets"),
        ([pa.array(range(20)), pa.array(["a"] * 20)], "bytes of data"),
        ([pa.array([True, False]), TEXTS], "bytes of data"),
        ([TEXTS, NUMBERS], "bytes of validity"),
        ([NUMBERS, pa.array([[1], []])], "arrays in"),
        ([pa.array([{"a": 1}, {"a": 2}]), TEXTS], "arrays in"),
    ],
    ids=["missing", "extra", "64-bit offsets", "int64", "bool", "swapped", "list", "struct"],
)
def test_arrays_that_are_not_those_of_the_schema(children: list[pa.Array[Any]], text: str) -> None:
    layouts = layouts_of(PAIR)
    body = value_of(PAIR, *children)
    with pytest.raises(ProtocolError, match=text):
        verify_typed(with_columns(layouts[1], body), layouts)


def test_a_canonical_value_under_a_schema() -> None:
    layouts = layouts_of(PAIR)
    with pytest.raises(ProtocolError, match="arrays in"):
        verify_typed(with_columns(layouts[1], columns_of([b"v"])), layouts)


def test_children_that_are_longer_or_shorter_than_the_rows() -> None:
    layouts = layouts_of(PAIR)
    good = with_columns(layouts[1], value_of(PAIR, NUMBERS, TEXTS))
    node = struct.pack("<2q", 2, 0)
    at = good.rindex(node)
    for length in (1, 3, 0, -1, 2**40):
        bad = good[:at] + struct.pack("<2q", length, 0) + good[at + 16 :]
        with pytest.raises(ProtocolError, match="entries, expected 2"):
            verify_typed(retyped(bad), layouts)


def test_more_items_than_offsets_can_name() -> None:
    layouts = layouts_of(schema_of(Field(0, "l", LIST, children=(Field(0, "item", BOOL),))))
    column = pa.StructArray.from_arrays([pa.array([[True]])], names=["l"])
    good = with_columns(layouts[1], pa.RecordBatch.from_arrays([column], names=["value"]))
    at = good.rindex(struct.pack("<2q", 1, 0))
    for length in (2**31, -1, 2**62):
        bad = good[:at] + struct.pack("<2q", length, 0) + good[at + 16 :]
        with pytest.raises(ProtocolError, match="for items"):
            verify_typed(retyped(bad), layouts)


@pytest.mark.parametrize("missing", ["timestamp", "key"])
def test_a_column_of_a_required_role_is_not_missing(missing: str) -> None:
    columns = stored_columns(LAYOUTS[1], flat_rows(2))
    kept = columns.select([name for name in columns.schema.names if name != missing])
    assert "lack the column" in refusal(with_columns(LAYOUTS[1], kept)).message


# ------------------------------------------------------------------- values that Arrow accepts


@pytest.mark.parametrize("count", [1, 3])
def test_a_required_field_has_no_nulls_in_rows(count: int) -> None:
    layouts = layouts_of(PAIR)
    numbers, texts = pa.array([None] * count, pa.int32()), pa.array(["a"] * count)
    with pytest.raises(ProtocolError, match=f"field 'n': {count} of {count} values are null; it is required"):
        verify_typed(with_columns(layouts[1], value_of(PAIR, numbers, texts)), layouts)
    gone = value_of(PAIR, numbers, texts, valid=[False] * count)
    assert verify_typed(with_columns(layouts[1], gone), layouts).record_count == count


@pytest.mark.parametrize("declared", [1, 3])
def test_as_many_tombstones_as_the_bitmap_has(declared: int) -> None:
    layouts = layouts_of(PAIR)
    children: list[Any] = [pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b", "c"])]
    for count, is_taken in ((2, True), (declared, False)):
        value = pa.Array.from_buffers(layouts[1].value_type, 3, [pa.py_buffer(b"\x01")], count, 0, children)
        batch = with_columns(layouts[1], pa.RecordBatch.from_arrays([value], names=["value"]))
        if is_taken:
            assert verify_typed(batch, layouts).record_count == 3
        else:
            assert f"null_count value ({count}) doesn't match" in refusal(batch, layouts).message


def test_nulls_of_tombstones_do_not_excuse_rows() -> None:
    layouts = layouts_of(PAIR)
    numbers, texts = pa.array([None, 1, None], pa.int32()), pa.array(["a"] * 3)
    with pytest.raises(ProtocolError, match="field 'n': 1 of 2 values"):
        verify_typed(with_columns(layouts[1], value_of(PAIR, numbers, texts, valid=[False, True, True])), layouts)
    taken = value_of(PAIR, numbers, texts, valid=[False, True, False])
    verify_typed(with_columns(layouts[1], taken), layouts)


def items_of(items: list[Any], offsets: list[int], names: Any, days: Any, *, valid: list[bool]) -> bytes:
    mask = pa.array([not each for each in items])
    structs = pa.StructArray.from_arrays([names, days], names=["a", "day"], mask=mask)
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs, mask=pa.array([not one for one in valid]))
    numbers = pa.array([1] * len(lists), pa.int32())
    return with_columns(row_layout(ITEMS), value_of(ITEMS, numbers, lists))


def test_a_required_field_of_an_item_has_no_nulls_where_the_item_counts() -> None:
    layouts = layouts_of(ITEMS)
    names, days = pa.array(["x", None, None, None]), pa.array([1, 2, 3, 4], pa.date32())
    # Item 1 is null itself, item 2 lies in a null list, item 3 in none.
    verify_typed(items_of([1, 0, 1, 1], [0, 2, 3], names, days, valid=[True, False]), layouts)
    with pytest.raises(ProtocolError, match=r"field 'l\.item\.a': 1 of 2 values are null"):
        verify_typed(items_of([1, 0, 1, 1], [0, 2, 3], names, days, valid=[True, True]), layouts)
    with pytest.raises(ProtocolError, match=r"field 'l\.item\.a': 1 of 2 values are null"):
        verify_typed(items_of([1, 1, 1, 1], [0, 2, 3], names, days, valid=[True, False]), layouts)


def test_dates_of_an_item_count_where_the_item_does() -> None:
    layouts = layouts_of(ITEMS)
    names, days = pa.array(["x"] * 4), pa.array([1, 2**30, 2**30, -(2**30)], pa.int32()).view(pa.date32())
    verify_typed(items_of([1, 0, 1, 1], [0, 2, 3], names, days, valid=[True, False]), layouts)
    with pytest.raises(ProtocolError, match=r"field 'l\.item\.day': .* outside the years 1 to 9999"):
        verify_typed(items_of([1, 1, 1, 1], [0, 2, 3], names, days, valid=[True, False]), layouts)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("kind", [DATE32, TIMESTAMP, TIMESTAMP_UTC], ids=str)
def test_dates_are_in_the_years_1_to_9999(kind: DataType, sign: int, count: int) -> None:
    schema = schema_of(Field(0, "n", INT8), Field(0, "d", kind))
    layouts = layouts_of(schema)
    storage = pa.int32() if kind is DATE32 else pa.int64()
    edge = {-1: DATE_DAYS_MIN, 1: DATE_DAYS_MAX} if kind is DATE32 else {-1: STAMP_US_MIN, 1: STAMP_US_MAX}

    def batch(number: int, *, live: bool = True) -> bytes:
        days = pa.array([0] * (count - 1) + [number], storage).view(arrow_type(schema.fields[1]))
        valid = [True] * (count - 1) + [live]
        return with_columns(layouts[1], value_of(schema, pa.array([1] * count, pa.int8()), days, valid=valid))

    verify_typed(batch(edge[sign]), layouts)
    with pytest.raises(ProtocolError, match=r"field 'd': .* outside the years 1 to 9999"):
        verify_typed(batch(edge[sign] + sign), layouts)
    verify_typed(batch(edge[sign] + sign, live=False), layouts)


@pytest.mark.parametrize("count", [1, 2])
def test_the_time_is_in_the_years_1_to_9999(count: int) -> None:
    columns = stored_columns(LAYOUTS[1], flat_rows(count))
    for stamp, is_taken in ((STAMP_US_MAX, True), (STAMP_US_MAX + 1, False), (STAMP_US_MIN - 1, False)):
        stamps = pa.array([stamp] * count, pa.timestamp("us", "UTC"))
        batch = with_columns(LAYOUTS[1], columns.set_column(0, "timestamp", stamps))
        if is_taken:
            verify_typed(batch, LAYOUTS)
        else:
            assert "field 'at'" in refusal(batch).message


@pytest.mark.parametrize("count", [1, 2])
def test_decimals_are_within_their_precision(count: int) -> None:
    schema = schema_of(Field(0, "p", decimal128(5, 2)))
    layouts = layouts_of(schema)
    for number, is_taken in ((99_999, True), (-99_999, True), (100_000, False), (-100_000, False), (2**100, False)):
        raw = number.to_bytes(16, "little", signed=True) * count
        prices = pa.Array.from_buffers(pa.decimal128(5, 2), count, [None, pa.py_buffer(raw)])
        batch = with_columns(layouts[1], value_of(schema, prices))
        if is_taken:
            verify_typed(batch, layouts)
        else:
            assert "does not fit in precision" in refusal(batch, layouts).message


def text_of(raw: bytes, count: int, kind: pa.DataType) -> pa.Array[Any]:
    return pa.Array.from_buffers(
        kind,
        count,
        [
            None,
            pa.py_buffer(struct.pack(f"<{count + 1}i", *(at * len(raw) for at in range(count + 1)))),
            pa.py_buffer(raw * count),
        ],
    )


@pytest.mark.parametrize("raw", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xc3"])
@pytest.mark.parametrize("count", [1, 2])
def test_text_is_utf_8(count: int, raw: bytes) -> None:
    layouts = layouts_of(PAIR)
    numbers = pa.array([1] * count, pa.int32())
    batch = with_columns(layouts[1], value_of(PAIR, numbers, text_of(raw, count, pa.string())))
    assert "UTF8" in refusal(batch, layouts).message
    columns = stored_columns(LAYOUTS[1], flat_rows(count))
    keys = columns.set_column(1, "key", text_of(raw, count, pa.binary()))
    assert "a key of type string is not UTF-8" in refusal(with_columns(LAYOUTS[1], keys)).message


@pytest.mark.parametrize("count", [1, 2])
def test_keys_have_the_form_of_their_type(count: int) -> None:
    schema = schema_of(Field(0, "k", INT8, required=True, role=Role.KEY), Field(0, "n", INT64))
    layouts = layouts_of(schema)
    columns = stored_columns(layouts[1], pa.RecordBatch.from_pydict({"k": [5] * count}))
    verify_typed(with_columns(layouts[1], columns), layouts)
    for key, text in ((b"1234567", "expected 8"), (b"", "expected 8"), ((2**63 + 128).to_bytes(8, "big"), "128")):
        bad = columns.set_column(0, "key", text_of(key, count, pa.binary()))
        assert text in refusal(with_columns(layouts[1], bad), layouts).message
    missing = columns.set_column(0, "key", pa.nulls(count, pa.binary()))
    assert f"key: {count} nulls" in refusal(with_columns(layouts[1], missing), layouts).message


@pytest.mark.parametrize("count", [1, 2])
def test_only_tombstones_lack_a_required_tag(count: int) -> None:
    schema = schema_of(Field(0, "t", STRING, required=True, role=Role.TAG), Field(0, "n", INT64))
    layouts = layouts_of(schema)
    columns = stored_columns(layouts[1], pa.RecordBatch.from_pydict({"t": ["x"] * count, "n": [1] * count}))
    verify_typed(with_columns(layouts[1], columns), layouts)
    without = columns.select(["value"])
    null = columns.set_column(1, "tag", pa.nulls(count, pa.string()))
    gone = value_of(schema, pa.array([1] * count), valid=[False] * count)
    for bad in (without, null):
        assert (
            f"field 't': {count} of {count} rows have no value"
            in refusal(with_columns(layouts[1], bad), layouts).message
        )
        verify_typed(with_columns(layouts[1], bad.set_column(0, "value", gone.column(0))), layouts)


@pytest.mark.parametrize("count", [1, 2])
def test_tags_are_short(count: int) -> None:
    columns = stored_columns(LAYOUTS[1], flat_rows(count))
    at = columns.schema.get_field_index("tag")
    for size, is_taken in ((TAG_BYTES_MAX, True), (TAG_BYTES_MAX + 1, False)):
        batch = with_columns(LAYOUTS[1], columns.set_column(at, "tag", pa.array(["t" * size] * count)))
        if is_taken:
            verify_typed(batch, LAYOUTS)
        else:
            assert refusal(batch).code == pb.BATCH_TOO_LARGE


@pytest.mark.parametrize("count", [1, 2])
def test_the_header_has_the_times_of_the_column(count: int) -> None:
    columns = stored_columns(LAYOUTS[1], flat_rows(count))
    for change in ({"base_timestamp_us": NOW_US - 1}, {"max_timestamp_us": NOW_US + 1}):
        assert "the timestamp column has" in refusal(with_columns(LAYOUTS[1], columns, **change)).message
    layouts = layouts_of(PAIR)
    plain = value_of(PAIR, NUMBERS.slice(0, count), TEXTS.slice(0, count))
    assert (
        "they must be equal" in refusal(with_columns(layouts[1], plain, max_timestamp_us=NOW_US + 1), layouts).message
    )


def test_a_header_of_another_kind_of_batch_is_not_taken() -> None:
    raw = encoded(LAYOUTS[1], flat_rows())
    assert (
        "transactional" in refusal(retyped(raw, flags=verify_typed(raw, LAYOUTS).flags | Flags.TRANSACTIONAL)).message
    )
    assert isinstance(verify_typed(raw, LAYOUTS), BatchHeader)
