"""Validation of small typed batches by hand: it accepts only what pyarrow's validation accepts, and what is usual."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import NOW_US
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, retyped, rows_of_schema, spliced, with_columns

from tidelog_proto.batch import quick_rows, typed_verification
from tidelog_proto.batch.columns import HEADERS_TYPE
from tidelog_proto.batch.header import BatchHeader, Codec, Flags, unpack_header
from tidelog_proto.batch.quick_rows import QUICK_BYTES_MAX, QUICK_RECORDS_MAX, is_surely_valid
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.typed_rows import DELETED, stored_columns
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, TAG_BYTES_MAX
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import (
    BINARY,
    DATE32,
    INT8,
    INT16,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP_UTC,
    decimal128,
)
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema


@pytest.fixture(autouse=True, scope="module", params=[0, 128], ids=["by numpy", "by Python"])
def ways_of_comparison(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let numbers be compared in both ways; the second is that of up to so many numbers."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quick_rows, "FEW_NUMBERS", request.param)
        _forget()
        yield
    _forget()


def _forget() -> None:
    quick_rows.number_reader.cache_clear()
    quick_rows.places_in.cache_clear()


def by_hand(batch: bytes, layouts: Layouts) -> bool:
    header = unpack_header(batch, typed=True)
    return is_surely_valid(header, layouts[header.schema_id], memoryview(batch)[HEADER_BYTES:])


def verdict(batch: bytes, layouts: Layouts) -> BatchHeader | None:
    """Return the header if pyarrow's path accepts a batch, None if it refuses it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(typed_verification, "is_surely_valid", lambda *_: False)
        try:
            return verify_typed(batch, layouts)
        except ProtocolError:
            return None


@given(schema=schemas(), data=st.data())
@settings(max_examples=80)
def test_usual_batches_are_accepted(schema: Schema, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    batch = encoded(layouts[1], data.draw(rows_of_schema(schema)))
    key, tag = layouts[1].key, layouts[1].tag
    columns = parsed(batch, layouts).columns()
    is_unusual = "key" in columns.schema.names and key is not None and key.type.kind not in {STRING.kind, BINARY.kind}
    if is_unusual:
        is_unusual = columns.column("key").null_count > 0
    if tag is not None and tag.required and "tag" not in columns.schema.names:
        is_unusual = True
    assert by_hand(batch, layouts) is not is_unusual
    assert verify_typed(batch, layouts) == verdict(batch, layouts)


@given(schema=schemas(), seed=st.integers(0, 2**32), data=st.data())
@settings(max_examples=60)
def test_hand_and_pyarrow_agree_on_changed_numbers(schema: Schema, seed: int, data: st.DataObject) -> None:
    """Bytes and numbers of valid batches are changed; pyarrow accepts each batch that is accepted by hand."""
    layouts = layouts_of(schema)
    good = encoded(layouts[1], data.draw(rows_of_schema(schema)))
    draw = random.Random(seed)
    for _ in range(60):
        raw = bytearray(good)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            size = draw.choice((1, 4, 8))
            at = draw.randrange(HEADER_BYTES, len(raw) - size + 1) & -size
            number = int.from_bytes(raw[at : at + size], "little") + draw.choice(_STEPS)
            raw[at : at + size] = (draw.choice((number, number, draw.getrandbits(64))) % (1 << 8 * size)).to_bytes(
                size, "little"
            )
        batch = retyped(bytes(raw))
        if by_hand(batch, layouts):
            assert verdict(batch, layouts) is not None


_STEPS = (-64, -8, -4, -2, -1, 1, 2, 4, 8, 64, 128, 1 << 31, 1 << 62)


@given(schema=schemas(), data=st.data())
@settings(max_examples=60)
def test_hand_and_pyarrow_agree_on_spliced_batches(schema: Schema, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    raw = bytearray(encoded(layouts[1], data.draw(rows_of_schema(schema))))
    data.draw(st.composite(lambda draw: spliced(draw, raw))())
    batch = retyped(bytes(raw))
    if by_hand(batch, layouts):
        assert verdict(batch, layouts) is not None


SCHEMA = schema_of(
    Field(0, "key", STRING, required=True, role=Role.KEY),
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "n", INT16, required=True),
    Field(0, "s", STRING),
    Field(0, "p", decimal128(20, 0)),
    Field(0, "place", STRUCT, children=(Field(0, "city", STRING, required=True), Field(0, "day", DATE32))),
    Field(0, "l", LIST, children=(Field(0, "item", STRING, required=True),)),
    Field(0, "tag", STRING, role=Role.TAG),
)
LAYOUTS = layouts_of(SCHEMA)
ROW = {
    "key": "k",
    "at": NOW_US,
    "n": 3,
    "s": "é",
    "p": Decimal(7),
    "place": {"city": "Rome", "day": 5},
    "l": ["a", "b"],
    "tag": "t",
}


def rows_like(*changes: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([ROW | change for change in changes], schema=LAYOUTS[1].row_schema)


def batch_of(*changes: dict[str, Any]) -> bytes:
    return encoded(LAYOUTS[1], rows_like(*changes))


@pytest.mark.parametrize("count", [1, 3])
def test_every_damaged_byte_is_judged_as_by_pyarrow(count: int) -> None:
    good = batch_of(
        *({"s": None if at == 1 else "é", "place": None if at == 2 else ROW["place"]} for at in range(count))
    )
    assert by_hand(good, LAYOUTS)
    accepted = 0
    for at in range(HEADER_BYTES, len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            batch = retyped(bytes(bad))
            if by_hand(batch, LAYOUTS):
                accepted += 1
                assert verdict(batch, LAYOUTS) is not None, (at, mask)
    assert 0 < accepted < len(good)


def test_every_number_of_the_metadata_counts() -> None:
    """Each number of a small batch, made larger, smaller, zero or huge: pyarrow's path agrees where it is accepted."""
    good = batch_of({}, {"s": None})
    head_end = 8 + int.from_bytes(good[HEADER_BYTES + 4 : HEADER_BYTES + 8], "little") + HEADER_BYTES
    for at in range(HEADER_BYTES, head_end - 7, 4):
        (number,) = struct.unpack_from("<q", good, at)
        for other in {number + 1, number - 1, number + 8, number - 8, 0, 2**31, 2**62, -(2**63), number + 64} - {
            number
        }:
            if not -(2**63) <= other < 2**63:
                continue
            bad = bytearray(good)
            struct.pack_into("<q", bad, at, other)
            batch = retyped(bytes(bad))
            if by_hand(batch, LAYOUTS):
                assert verdict(batch, LAYOUTS) is not None, (at, other)


def test_tombstones_excuse_nulls_in_required_fields() -> None:
    rows = rows_like({}, {}).append_column(DELETED, pa.array([False, True]))
    gone = encoded(LAYOUTS[1], rows)
    assert by_hand(gone, LAYOUTS)
    columns = stored_columns(LAYOUTS[1], rows_like({}, {}))
    at = columns.schema.get_field_index("value")
    value: Any = columns.column(at)
    children = [value.field(n) for n in range(value.type.num_fields)]
    children[0] = pa.array([None, 1], pa.int16())
    for mask, is_valid in (([True, False], True), ([False, True], False), ([False, False], False)):
        struct_of = pa.StructArray.from_arrays(children, names=value.type.names, mask=pa.array(mask))
        batch = with_columns(LAYOUTS[1], columns.set_column(at, "value", struct_of))
        assert by_hand(batch, LAYOUTS) is is_valid
        assert (verdict(batch, LAYOUTS) is not None) is is_valid


def test_a_required_tag_is_missing_in_tombstones_only() -> None:
    schema = schema_of(Field(0, "t", STRING, required=True, role=Role.TAG), Field(0, "n", INT64))
    layouts = layouts_of(schema)
    columns = stored_columns(layouts[1], pa.RecordBatch.from_pydict({"t": ["x", "y"], "n": [1, 2]}))
    tags = columns.set_column(1, "tag", pa.array(["x", None]))
    assert not by_hand(with_columns(layouts[1], tags), layouts)
    value = pa.StructArray.from_arrays([pa.array([1, 2])], names=["n"], mask=pa.array([False, True]))
    assert by_hand(with_columns(layouts[1], tags.set_column(0, "value", value)), layouts)
    assert not by_hand(with_columns(layouts[1], columns.select(["value"])), layouts)


def test_tags_are_short() -> None:
    for size, is_valid in ((TAG_BYTES_MAX, True), (TAG_BYTES_MAX + 1, False)):
        columns = stored_columns(LAYOUTS[1], rows_like({}, {}))
        at = columns.schema.get_field_index("tag")
        batch = with_columns(LAYOUTS[1], columns.set_column(at, "tag", pa.array(["t", "t" * size])))
        assert by_hand(batch, LAYOUTS) is is_valid


def test_values_do_not_begin_within_a_character() -> None:
    """The text as a whole is UTF-8, and so is not each value."""
    texts = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer("é".encode())]
    )
    schema = schema_of(Field(0, "s", STRING))
    layouts = layouts_of(schema)
    value = pa.StructArray.from_arrays([texts], names=["s"])
    batch = with_columns(layouts[1], pa.RecordBatch.from_arrays([value], names=["value"]))
    assert not by_hand(batch, layouts)
    assert verdict(batch, layouts) is None
    assert by_hand(encoded(layouts[1], pa.RecordBatch.from_pydict({"s": ["é", "", "ü"]})), layouts)


def test_keys_of_numbers() -> None:
    schema = schema_of(Field(0, "k", INT8, role=Role.KEY), Field(0, "n", INT64))
    layouts = layouts_of(schema)
    rows = pa.RecordBatch.from_pydict({"k": pa.array([-128, 127], pa.int8()), "n": [1, 2]})
    columns = stored_columns(layouts[1], rows)
    assert by_hand(encoded(layouts[1], rows), layouts)
    for keys in (
        [(2**63 + 128).to_bytes(8, "big"), b"\x80" + bytes(7)],
        [b"\x80" + bytes(7), b"\x80" + bytes(6)],
        [b"", b""],
    ):
        batch = with_columns(layouts[1], columns.set_column(0, "key", pa.array(keys, pa.binary())))
        assert not by_hand(batch, layouts)
        assert verdict(batch, layouts) is None
    unusual = encoded(layouts[1], pa.RecordBatch.from_pydict({"k": pa.array([1, None], pa.int8()), "n": [1, 2]}))
    assert not by_hand(unusual, layouts)
    assert verify_typed(unusual, layouts).record_count == 2


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY])
def test_compressed_batches_are_not_read_by_hand(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_verification, "is_surely_valid", lambda *_: pytest.fail("read by hand"))
    assert verify_typed(encoded(LAYOUTS[1], rows_like({}), codec), LAYOUTS).codec is codec


def test_large_batches_are_left_to_pyarrow() -> None:
    layouts = layouts_of(schema_of(Field(0, "s", STRING)))
    for count, size in ((QUICK_RECORDS_MAX, 1), (QUICK_RECORDS_MAX + 1, 1), (2, QUICK_BYTES_MAX // 2)):
        batch = encoded(layouts[1], pa.RecordBatch.from_pydict({"s": ["x" * size] * count}))
        assert by_hand(batch, layouts) is (count == QUICK_RECORDS_MAX)
        assert verify_typed(batch, layouts).record_count == count


def test_a_wrong_uncompressed_length_is_not_accepted() -> None:
    good = batch_of({})
    assert not by_hand(retyped(good, uncompressed_length=len(good)), LAYOUTS)


def test_bytes_after_the_last_buffer_are_not_accepted() -> None:
    good = batch_of({})
    body = good[HEADER_BYTES:]
    body_bytes = len(body) - 8 - int.from_bytes(body[4:8], "little")
    longer = good.replace(struct.pack("<q", body_bytes), struct.pack("<q", body_bytes + 8), 1) + bytes(8)
    assert not by_hand(retyped(longer), LAYOUTS)
    with pytest.raises(ProtocolError, match="the last Arrow buffer ends at"):
        verify_typed(retyped(longer), LAYOUTS)


def test_times_of_the_header_are_those_of_the_rows() -> None:
    good = batch_of({}, {"at": NOW_US + 5})
    assert by_hand(good, LAYOUTS)
    for change in ({"base_timestamp_us": NOW_US - 1}, {"max_timestamp_us": NOW_US + 4}):
        assert not by_hand(retyped(good, **change), LAYOUTS)
    untimed = layouts_of(schema_of(Field(0, "n", INT64)))
    batch = encoded(untimed[1], pa.RecordBatch.from_pydict({"n": [1]}))
    assert by_hand(batch, untimed)
    assert not by_hand(retyped(batch, max_timestamp_us=NOW_US + 1), untimed)


def test_the_flags_decide_about_the_columns() -> None:
    batch = batch_of({})
    flags = unpack_header(batch, typed=True).flags
    assert flags == Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.TAG
    assert not by_hand(retyped(batch, flags=flags | Flags.HEADERS), LAYOUTS)
    assert not by_hand(retyped(batch, flags=flags & ~Flags.KEY), LAYOUTS)
    assert not by_hand(retyped(batch, flags=flags | Flags.DERIVED, producer_id=0, base_sequence=0), LAYOUTS)
    assert parsed(batch, LAYOUTS).keys() == [b"k"]


def test_a_schema_of_every_type_is_read_by_hand() -> None:
    layouts = layouts_of(EVERY_TYPE)
    rows = {field.name: pa.array([_SAMPLES.get(field.name, 1)] * 2, arrow_type(field)) for field in EVERY_TYPE.fields}
    headers = pa.array([[{"key": "name", "value": b"v"}], []], HEADERS_TYPE)
    columns = pa.RecordBatch.from_pydict(rows | {"_headers": headers})
    assert by_hand(encoded(layouts[1], columns), layouts)


_SAMPLES: dict[str, Any] = {
    "carrier": "UA",
    "origin": "é",
    "leaf0": True,
    "leaf7": "text",
    "leaf8": b"\xff",
    "stops": [1, 2],
    "place": {"city": "Rome", "Höhe über NN": 5.0},
}
