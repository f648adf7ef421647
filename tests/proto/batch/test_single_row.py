"""Validation of one typed record by hand: it accepts only what pyarrow's validation accepts, and what is usual."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import NOW_US
from tests.proto.schemas import leaf_types, schema_of
from tests.proto.typed_batches import encoded, layouts_of, parsed, retyped, rows_of_schema, spliced, values_of

from tidelog_proto.batch import typed_verification
from tidelog_proto.batch.header import BatchHeader, Codec, Flags, unpack_header
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.single_row import is_valid_row
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import INT16, LIST, STRING, TIMESTAMP_UTC, DataType
from tidelog_proto.schema.field_checks import ROLE_KINDS
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema


@st.composite
def flat_schemas(draw: st.DrawFn) -> Schema:
    """Make a schema without lists and structs."""
    kinds = draw(st.lists(st.tuples(leaf_types, st.booleans()), min_size=1, max_size=6))
    fields = [Field(0, f"f{at}", kind, required=required) for at, (kind, required) in enumerate(kinds)]
    for role in draw(st.sets(st.sampled_from([Role.TIME, Role.KEY, Role.TAG]))):
        kind = DataType(draw(st.sampled_from(sorted(ROLE_KINDS[role]))))
        required = role is Role.TIME or draw(st.booleans())
        fields.append(Field(0, role.name.lower(), kind, required=required, role=role))
    return schema_of(*fields)


def by_hand(batch: bytes, layouts: Layouts) -> bool:
    header = unpack_header(batch, typed=True)
    return is_valid_row(header, layouts[header.schema_id], batch[HEADER_BYTES:])


def verdict(batch: bytes, layouts: Layouts, monkeypatch: pytest.MonkeyPatch) -> BatchHeader | None:
    """Return the header if pyarrow's path accepts a batch, None if it refuses it."""
    with monkeypatch.context() as patched:
        patched.setattr(typed_verification, "is_valid_row", lambda *_: False)
        try:
            return verify_typed(batch, layouts)
        except ProtocolError:
            return None


@given(schema=flat_schemas(), data=st.data())
@settings(max_examples=150)
def test_usual_records_are_accepted(schema: Schema, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    columns = {field.name: pa.array([data.draw(values_of(field))], arrow_type(field)) for field in schema.fields}
    batch = encoded(layouts[1], pa.RecordBatch.from_pydict(columns))
    assert by_hand(batch, layouts)
    assert verify_typed(batch, layouts).record_count == 1


def test_hand_and_pyarrow_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    @given(schema=flat_schemas(), data=st.data())
    @settings(max_examples=400)
    def check(schema: Schema, data: st.DataObject) -> None:
        layouts = layouts_of(schema)
        raw = bytearray(encoded(layouts[1], data.draw(rows_of_schema(schema, max_size=1))))
        data.draw(st.composite(lambda draw: spliced(draw, raw))())
        batch = retyped(bytes(raw))
        if by_hand(batch, layouts):
            assert verdict(batch, layouts, monkeypatch) is not None

    check()


SCHEMA = schema_of(
    Field(0, "key", STRING, required=True, role=Role.KEY),
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "n", INT16, required=True),
    Field(0, "s", STRING),
)
LAYOUTS = layouts_of(SCHEMA)


def batch_of(**changes: Any) -> bytes:
    row = {"key": "k", "at": NOW_US, "n": 3, "s": "text"} | changes
    return encoded(LAYOUTS[1], pa.RecordBatch.from_pylist([row], schema=LAYOUTS[1].row_schema))


def test_every_damaged_byte_is_judged_as_by_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    good = batch_of(s=None)
    accepted = 0
    for at in range(HEADER_BYTES, len(good)):
        for mask in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= mask
            batch = retyped(bytes(bad))
            if by_hand(batch, LAYOUTS):
                accepted += 1
                assert verdict(batch, LAYOUTS, monkeypatch) is not None
    assert accepted


def test_unusual_records_are_left_to_pyarrow() -> None:
    assert by_hand(batch_of(), LAYOUTS)
    stamps = pa.array([NOW_US], pa.timestamp("us", "UTC"))
    deleted = pa.RecordBatch.from_pydict({"key": pa.array(["k"]), "at": stamps, DELETED: pa.array([True])})
    gone = encoded(LAYOUTS[1], deleted)
    assert not by_hand(gone, LAYOUTS)
    assert verify_typed(gone, LAYOUTS).record_count == 1
    with_headers = schema_of(Field(0, "n", INT16), Field(0, "l", LIST, children=(Field(0, "item", INT16),)))
    layouts = layouts_of(with_headers)
    assert not by_hand(encoded(layouts[1], pa.RecordBatch.from_pydict({"n": [1]})), layouts)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY])
def test_compressed_records_are_not_read_by_hand(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_verification, "is_valid_row", lambda *_: pytest.fail("read by hand"))
    rows = pa.RecordBatch.from_pylist([{"key": "k", "at": NOW_US, "n": 3}], schema=LAYOUTS[1].row_schema)
    assert verify_typed(encoded(LAYOUTS[1], rows, codec), LAYOUTS).codec is codec


def test_a_wrong_uncompressed_length_is_not_accepted() -> None:
    good = batch_of()
    assert not by_hand(retyped(good, uncompressed_length=len(good)), LAYOUTS)


def test_bytes_after_the_last_buffer_are_not_accepted() -> None:
    good = batch_of()
    body = good[HEADER_BYTES:]
    body_bytes = len(body) - 8 - int.from_bytes(body[4:8], "little")
    longer = good.replace(struct.pack("<q", body_bytes), struct.pack("<q", body_bytes + 8), 1) + bytes(8)
    assert not by_hand(retyped(longer), LAYOUTS)
    with pytest.raises(ProtocolError, match="the last Arrow buffer ends at"):
        verify_typed(retyped(longer), LAYOUTS)


def test_the_flags_decide_about_the_columns() -> None:
    batch = batch_of()
    flags = unpack_header(batch, typed=True).flags
    assert flags == Flags.TIMESTAMP | Flags.KEY | Flags.VALUE
    assert not by_hand(retyped(batch, flags=flags | Flags.TAG), LAYOUTS)
    assert not by_hand(retyped(batch, flags=flags & ~Flags.KEY), LAYOUTS)
    assert parsed(batch, LAYOUTS).keys() == [b"k"]
