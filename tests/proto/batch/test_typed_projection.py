"""Projection of typed batches onto requested columns and fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, NOW_US
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, retyped, rows_of_schema

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import projection
from tidelog_proto.batch.derived_batch import kept_rows
from tidelog_proto.batch.field_selection import all_fields
from tidelog_proto.batch.header import COLUMN_FLAGS, Codec, Flags, unpack_header
from tidelog_proto.batch.ipc_message import buffer_lengths, parse_message, uncompressed_bytes
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.batch.typed_rows import DELETED, rows_of
from tidelog_proto.batch.typed_verification import verify_typed, verify_typed_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES
from tidelog_proto.schema.data_types import INT32, LIST, STRING, STRUCT, TIMESTAMP_UTC
from tidelog_proto.schema.fields import Field, Role, fields_below
from tidelog_proto.schema.topic_schema import Schema

BY_BUFFER = (Codec.NONE, Codec.LZ4, Codec.ZSTD)
FLIGHTS = schema_of(
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "carrier", STRING, required=True, role=Role.KEY),
    Field(0, "kind", STRING, role=Role.TAG),
    Field(0, "n", INT32, required=True),
    Field(0, "place", STRUCT, children=(Field(0, "city", STRING), Field(0, "zone", INT32))),
    Field(0, "stops", LIST, children=(Field(0, "item", STRING),)),
)
LAYOUTS = layouts_of(FLIGHTS)
ROW = {
    "at": NOW_US,
    "carrier": "UA",
    "kind": "x",
    "n": 5,
    "place": {"city": "Rome", "zone": 1},
    "stops": ["a", "b"],
}
IDS = {name: field.id for name, field in zip(ROW, FLIGHTS.fields, strict=True)}
CITY = FLIGHTS.fields[4].children[0].id


@pytest.fixture(autouse=True, scope="module")
def small_batches_are_cut() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(projection, "WHOLE_BYTES_MAX", 0)
        yield


def flights(count: int = 3, codec: Codec = Codec.NONE) -> bytes:
    layout = LAYOUTS[1]
    return encoded(layout, pa.RecordBatch.from_pylist([ROW] * count, schema=layout.row_schema), codec, base=50)


def projected(batch: bytes, layouts: Layouts, columns: int, fields: frozenset[int]) -> bytes:
    number = unpack_header(batch, typed=True).schema_id
    return bytes(project_rows(batch, layouts[number], columns=columns, fields=fields))


def pruned(value: Any, field: Field, ids: frozenset[int], *, chosen: bool = False) -> Any:
    """Return what is left of a value of a field, by rules that do not use Arrow; `...` if nothing of it is left."""
    chosen = chosen or field.id in ids
    if field.is_leaf:
        return value if chosen else ...
    if not any(chosen or below.id in ids for below in fields_below(field.children)) or not _has_leaf(
        field, ids, chosen
    ):
        return ...
    if value is None:
        return None
    if field.type.kind is LIST.kind:
        return [pruned(item, field.children[0], ids, chosen=chosen) for item in value]
    left = {child.name: pruned(value[child.name], child, ids, chosen=chosen) for child in field.children}
    return {name: each for name, each in left.items() if each is not ...}


def _has_leaf(field: Field, ids: frozenset[int], chosen: bool) -> bool:
    chosen = chosen or field.id in ids
    if field.is_leaf:
        return chosen
    return any(_has_leaf(child, ids, chosen) for child in field.children)


def expected_rows(rows: list[dict[str, Any]], schema: Schema, ids: frozenset[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row in rows:
        left = {field.name: pruned(row[field.name], field, ids) for field in schema.fields}
        found.append({name: value for name, value in left.items() if value is not ...} | {DELETED: row[DELETED]})
    return found


_ROLE_FLAGS = {Role.TIME: Flags.TIMESTAMP, Role.KEY: Flags.KEY, Role.TAG: Flags.TAG}


def columns_for(schema: Schema, ids: frozenset[int]) -> int:
    """Return the columns that a reader of some fields requests."""
    return Flags.VALUE | sum(_ROLE_FLAGS[field.role] for field in schema.fields if field.role and field.id in ids)


@given(schema=schemas(), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=120)
def test_a_projection_has_the_requested_part_of_the_rows(schema: Schema, codec: Codec, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    batch = encoded(layouts[1], data.draw(rows_of_schema(schema)), codec, base=70)
    if data.draw(st.booleans()):
        whole = parsed(batch, layouts)
        keep = np.array([data.draw(st.booleans()) for _ in range(len(whole))])
        batch = bytes(kept_rows(whole, keep) or batch)
    ids = frozenset(data.draw(st.sets(st.sampled_from([field.id for field in fields_below(schema.fields)]))))
    extra = data.draw(st.integers(0, COLUMN_FLAGS))
    sent = parsed(projected(batch, layouts, columns_for(schema, ids) | extra, ids | {10_000}), layouts)
    whole = parsed(batch, layouts)
    assert (sent.offset_list(), sent.end_offset, sent.derived) == (whole.offset_list(), whole.end_offset, whole.derived)
    sent.columns().validate(full=True)
    expected = expected_rows(rows_of(whole, tombstones=True).to_pylist(), schema, ids)
    for batch_read in (whole, sent):
        assert repr(rows_of(batch_read, tombstones=True, fields=ids).to_pylist()) == repr(expected)
        live = rows_of(batch_read, fields=ids)
        assert live.num_rows == sum(not row[DELETED] for row in expected)
    for name, flag in (("key", Flags.KEY), ("tag", Flags.TAG), ("headers", Flags.HEADERS)):
        if extra & whole.header.flags & flag:
            assert sent.columns().column(name).equals(whole.columns().column(name))
    at = data.draw(st.integers(0, len(whole)))
    cut, rest = (
        one.slice_from(whole.offset_list()[at]) if at < len(whole) else one.slice_from(10**6) for one in (sent, whole)
    )
    assert repr(rows_of(cut, fields=ids).to_pylist()) == repr(rows_of(rest, fields=ids).to_pylist())


@given(schema=schemas(), codec=st.sampled_from(BY_BUFFER), data=st.data())
@settings(max_examples=60)
def test_a_projection_has_the_buffers_of_the_requested_fields_only(
    schema: Schema, codec: Codec, data: st.DataObject
) -> None:
    layouts = layouts_of(schema)
    batch = encoded(layouts[1], data.draw(rows_of_schema(schema)), codec, base=70)
    ids = frozenset(data.draw(st.sets(st.sampled_from([field.id for field in fields_below(schema.value_fields)]))))
    sent = projected(batch, layouts, Flags.VALUE, ids)
    header = unpack_header(sent, is_sent=True, typed=True)
    if sent == batch:
        assert all(_has_leaf(field, ids, False) for field in schema.value_fields)
        return
    assert header.flags & (COLUMN_FLAGS | Flags.PROJECTED) == Flags.VALUE | Flags.PROJECTED
    assert (header.digest, header.schema_digest) == (0, schema.digest)
    chosen = [
        field for field in fields_below(schema.value_fields) if _has_leaf(field, ids | _with_below(schema, ids), False)
    ]
    message = sent[HEADER_BYTES + len(all_fields(schema)) :]
    description = parse_message(message, typed=True)
    assert len(description.nodes) == 1 + len(chosen)
    uncompressed = uncompressed_bytes(description, buffer_lengths(message, description))
    assert header.uncompressed_length == len(all_fields(schema)) + uncompressed
    own = rows_of(parsed(sent, layouts), tombstones=True)
    assert repr(own.to_pylist()) == repr(
        expected_rows(rows_of(parsed(batch, layouts), tombstones=True).to_pylist(), schema, ids)
    )


def _with_below(schema: Schema, ids: frozenset[int]) -> frozenset[int]:
    """Return ids with those of all fields below theirs."""
    return frozenset(
        below.id for field in fields_below(schema.value_fields) if field.id in ids for below in fields_below([field])
    )


def test_every_subset_of_leaves_is_read_under_the_schema() -> None:
    leaves = [field for field in fields_below(FLIGHTS.fields) if field.is_leaf]
    for codec in BY_BUFFER:
        batch = flights(4, codec)
        whole = rows_of(parsed(batch, LAYOUTS), tombstones=True).to_pylist()
        for bits in range(1 << len(leaves)):
            ids = frozenset(field.id for at, field in enumerate(leaves) if bits >> at & 1)
            sent = parsed(projected(batch, LAYOUTS, columns_for(FLIGHTS, ids), ids), LAYOUTS)
            assert rows_of(sent, tombstones=True).to_pylist() == expected_rows(whole, FLIGHTS, ids)


def test_a_projection_of_few_fields_is_small() -> None:
    batch = flights(10_000)
    sizes = [len(projected(batch, LAYOUTS, columns, frozenset(ids))) for columns, ids in _REQUESTS]
    assert sizes[0] < 128 + 8 + 300
    assert 40_000 < sizes[1] < 40_000 + 128 + 8 + 300
    assert 40_000 < sizes[2] < 81_000
    assert sizes[3] == HEADER_BYTES
    assert projected(batch, LAYOUTS, COLUMN_FLAGS, frozenset(IDS.values())) == batch


_REQUESTS: list[tuple[int, set[int]]] = [
    (Flags.VALUE, set()),
    (Flags.VALUE, {IDS["n"]}),
    (Flags.VALUE, {CITY}),
    (0, {IDS["n"]}),
]


def test_batches_that_shrink_little_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY):
        batch = flights(100, codec)
        assert project_rows(batch, LAYOUTS[1], columns=Flags.VALUE, fields=frozenset({CITY})) is batch
        assert len(projected(batch, LAYOUTS, 0, frozenset())) == HEADER_BYTES
    monkeypatch.setattr(projection, "WHOLE_BYTES_MAX", 1 << 20)
    batch = flights(100)
    assert project_rows(batch, LAYOUTS[1], columns=Flags.VALUE, fields=frozenset({CITY})) is batch


def test_damage_gets_no_new_crc() -> None:
    batch = flights(30)
    for at in range(HEADER_BYTES, len(batch), 31):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError, match="CRC32C") as refused:
            project_rows(damaged, LAYOUTS[1], columns=Flags.VALUE, fields=frozenset({CITY}))
        assert refused.value.code == pb.CORRUPT_BATCH


def test_arrays_of_another_schema_are_not_cut() -> None:
    other = schema_of(Field(0, "n", INT32))
    batch = encoded(layouts_of(other)[1], pa.RecordBatch.from_pydict({"n": pa.array([1], pa.int32())}))
    claimed = retyped(batch, schema_digest=FLIGHTS.digest, flags=int(Flags.TIMESTAMP | Flags.KEY | Flags.VALUE))
    with pytest.raises(ProtocolError, match="arrays in"):
        project_rows(claimed, LAYOUTS[1], columns=Flags.VALUE, fields=frozenset({CITY}))
    with pytest.raises(ProtocolError, match="reload the schemas"):
        project_rows(batch, LAYOUTS[1], columns=Flags.VALUE, fields=frozenset({CITY}))


def test_nodes_store_no_projected_batch() -> None:
    for columns in (0, Flags.KEY, Flags.VALUE):
        sent = projected(flights(), LAYOUTS, columns, frozenset({CITY}))
        for verify in (verify_typed, verify_typed_stored):
            with pytest.raises(ProtocolError, match="allows here only the bits"):
                verify(sent, LAYOUTS)
        with pytest.raises(ProtocolError, match="allows here only the bits"):
            projected(sent, LAYOUTS, columns, frozenset())


def read(batch: bytes, fields: frozenset[int] | None = None) -> list[dict[str, Any]]:
    return rows_of(RecordBatch.parse(batch, LAYOUTS), fields=fields).to_pylist()


@pytest.mark.parametrize("selection", ["0100000000000001", "1000000000000000", "0000000000000080", "ff00000000000000"])
def test_a_selection_of_fields_that_the_schema_does_not_have(selection: str) -> None:
    sent = projected(flights(), LAYOUTS, Flags.VALUE, frozenset({IDS["n"]}))
    assert sent[HEADER_BYTES : HEADER_BYTES + 8].hex() == "0100000000000000"
    bad = sent[:HEADER_BYTES] + bytes.fromhex(selection) + sent[HEADER_BYTES + 8 :]
    with pytest.raises(ProtocolError, match="does not fit the 4 leaves") as refused:
        read(_resent(bad))
    assert refused.value.code == pb.CORRUPT_BATCH


def _resent(batch: bytes, **changes: Any) -> bytes:
    """Return a projected batch with lengths and CRCs made to match its bytes."""
    body = batch[HEADER_BYTES:]
    header = unpack_header(batch[:HEADER_BYTES], is_sent=True, typed=True)
    return header._replace(**{"body_length": len(body), "body_crc": crc32c(body), **changes}).pack() + body


def test_a_body_without_a_selection() -> None:
    sent = projected(flights(), LAYOUTS, Flags.VALUE, frozenset({IDS["n"]}))
    for length in range(9):
        with pytest.raises(ProtocolError) as refused:
            read(_resent(sent[: HEADER_BYTES + length]))
        assert refused.value.code == pb.CORRUPT_BATCH
    with pytest.raises(ProtocolError, match="expected none, lz4 or zstd"):
        read(_resent(sent, flags=unpack_header(sent, is_sent=True, typed=True).flags | Codec.GZIP << 8))


@pytest.mark.parametrize("codec", BY_BUFFER)
def test_damaged_projections_with_matching_crcs_are_refused_or_decode(codec: Codec) -> None:
    """A reader trusts the node that the values are valid, and still gets rows of the batch's fields, or an error."""
    sent = projected(flights(3, codec), LAYOUTS, Flags.VALUE, frozenset({IDS["n"], CITY}))
    refusals = 0
    for at in range(HEADER_BYTES, len(sent)):
        for mask in (1, 0x80, 0xFF):
            bad = bytearray(sent)
            bad[at] ^= mask
            with pytest.raises(ProtocolError, match="CRC32C"):
                RecordBatch.parse(bytes(bad), LAYOUTS)
            try:
                columns = RecordBatch.parse(_resent(bytes(bad)), LAYOUTS).columns()
            except ProtocolError:
                refusals += 1
                continue
            assert columns.num_rows == 3
    assert refusals > 100


def test_readers_of_one_more_field_do_not_take_nulls_for_it() -> None:
    sent = projected(flights(), LAYOUTS, Flags.VALUE | Flags.KEY, frozenset({CITY}))
    assert read(sent) == [{"carrier": "UA", "place": {"city": "Rome"}}] * 3
    assert read(sent, frozenset({CITY})) == [{"place": {"city": "Rome"}}] * 3
    for name in ("n", "stops", "place", "at"):
        with pytest.raises(ProtocolError, match="was sent without the requested field"):
            read(sent, frozenset({IDS[name]}))
    alone = projected(flights(), LAYOUTS, Flags.VALUE, frozenset({CITY}))
    with pytest.raises(ProtocolError, match="without the requested field 'carrier'"):
        read(alone, frozenset({IDS["carrier"]}))


def test_rows_need_the_column_value() -> None:
    for columns in (0, Flags.KEY):
        sent = projected(flights(), LAYOUTS, columns, frozenset({CITY}))
        with pytest.raises(TypeError, match="request it to know which records are rows"):
            read(sent)
    assert parsed(projected(flights(), LAYOUTS, Flags.KEY, frozenset()), LAYOUTS).keys() == [b"UA"] * 3


def test_a_reader_without_the_schema_refuses_a_projection() -> None:
    sent = projected(flights(), LAYOUTS, Flags.VALUE, frozenset({CITY}))
    with pytest.raises(ProtocolError, match="not supported here"):
        RecordBatch.parse(sent)
    with pytest.raises(ProtocolError, match="not known here"):
        RecordBatch.parse(sent, {})


def test_all_types_are_cut() -> None:
    layouts = layouts_of(EVERY_TYPE)
    rows = pa.RecordBatch.from_pylist([{"at": 1, "carrier": "c"}] * 2, schema=layouts[1].row_schema)
    nulls = pa.RecordBatch.from_pydict(
        {name: rows.column(name) for name in ("at", "carrier")} | {DELETED: pa.array([True, True])}
    )
    batch = encoded(layouts[1], nulls, base=5)
    for field in EVERY_TYPE.value_fields:
        sent = parsed(projected(batch, layouts, Flags.VALUE, frozenset({field.id})), layouts)
        assert rows_of(sent, tombstones=True).schema.names == [field.name, DELETED]
