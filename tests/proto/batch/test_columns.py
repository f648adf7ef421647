from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.proto.batches import EVERYTHING, NOW_US, Given, given_records

from tidelog_proto.batch.columns import (
    HEADERS_TYPE,
    TIMESTAMP_TYPE,
    TIMESTAMP_US_MAX,
    canonical,
    columns_of,
    flags_of,
    schema_of,
    with_tight_headers,
)
from tidelog_proto.batch.header import Flags
from tidelog_proto.limits import TAG_BYTES_MAX


def rows(columns: pa.RecordBatch, name: str) -> list[Any]:
    array: Any = columns.column(name)
    return list(array.to_pylist())


ALL = Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.HEADERS | Flags.TAG


def test_schema_of_flags_and_back() -> None:
    assert schema_of(ALL).names == ["timestamp", "key", "value", "headers", "tag"]
    assert schema_of(Flags.VALUE | Flags.CONTROL | 0x400).names == ["value"]
    for bits in range(32):
        if bits & Flags.VALUE:
            assert flags_of(schema_of(bits)) == bits


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("key", pa.binary())]),
        pa.schema([("value", pa.string())]),
        pa.schema([("value", pa.binary()), ("key", pa.binary())]),
        pa.schema([("value", pa.binary()), ("other", pa.binary())]),
        pa.schema([("value", pa.binary()), ("value", pa.binary())]),
        pa.schema([]),
    ],
    ids=str,
)
def test_schemas_that_are_not_canonical(schema: pa.Schema) -> None:
    with pytest.raises(TypeError, match="canonical"):
        flags_of(schema)


@given(given_records())
@settings(max_examples=100)
def test_columns_hold_what_was_given(records: Given) -> None:
    columns = records.columns()
    columns.validate(full=True)
    assert columns.column("value").to_pylist() == records.values
    if records.headers is not None:
        pairs = [[(pair["key"], pair["value"]) for pair in one] for one in rows(columns, "headers")]
        assert pairs == records.headers
    if all(0 <= stamp_us <= TIMESTAMP_US_MAX for stamp_us in records.timestamps_us or ()):
        assert canonical(columns).equals(columns)
    else:
        with pytest.raises(ValueError, match="1970"):
            canonical(columns)
    flags_of(columns.schema)


def test_no_headers_may_be_said_with_none() -> None:
    columns = columns_of([b"a", b"b"], headers=[None, [("k", None)]])
    assert columns.column("headers").to_pylist() == [[], [{"key": "k", "value": None}]]
    assert columns.column("headers").null_count == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"values": [1]},
        {"values": [b"a"], "keys": [1.5]},
        {"values": [b"a"], "tags": [b"\xff"]},
        {"values": [b"a"], "headers": [[(None, b"v")]]},
        {"values": [b"a"], "headers": [[("k", 1)]]},
        {"values": [b"a"], "timestamps_us": ["now"]},
    ],
    ids=str,
)
def test_values_of_a_wrong_type(arguments: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        columns_of(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": [b"a", b"b"], "keys": [b"k"]}, "one entry per record"),
        ({"values": [b"a"], "headers": []}, "one entry per record"),
        ({"values": [b"a"], "timestamps_us": [None]}, "timestamp"),
        ({"values": [b"a"], "tags": ["x" * (TAG_BYTES_MAX + 1)]}, "tag"),
    ],
)
def test_columns_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        columns_of(**arguments)


def test_canonical_columns_pass_untouched() -> None:
    columns = replace(EVERYTHING, timestamps_us=[NOW_US + 5, 3, NOW_US]).columns()
    result = canonical(columns)
    for before, after in zip(columns.columns, result.columns, strict=True):
        assert [b and b.address for b in before.buffers()] == [a and a.address for a in after.buffers()]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["ab", None, ""]),
        pa.array([b"ab", None, b""], pa.large_binary()),
        pa.array(["ab", None, ""], pa.large_string()),
        pa.array(["ab", None, ""], pa.string_view()),
        pa.array([b"ab", None, b""], pa.binary_view()),
        pa.array(["ab", None, ""]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_every_kind_of_bytes_becomes_binary(array: pa.Array[Any]) -> None:
    columns = canonical(pa.RecordBatch.from_arrays([array, array], names=["value", "key"]))
    assert columns.schema.names == ["key", "value"]
    assert columns.column("value").to_pylist() == [b"ab", None, b""]
    flags_of(columns.schema)


def test_fixed_size_bytes_become_binary() -> None:
    columns = canonical(pa.record_batch({"value": pa.array([b"ab", None], pa.binary(2))}))
    assert columns.column("value").to_pylist() == [b"ab", None]


@pytest.mark.parametrize(
    ("array", "expected_us"),
    [
        (pa.array([NOW_US * 1000 + 999], pa.timestamp("ns")), NOW_US),
        (pa.array([NOW_US // 1000], pa.timestamp("ms", "Europe/Berlin")), NOW_US),
        (pa.array([1], pa.timestamp("s")), 1_000_000),
        (pa.array([NOW_US // 1000], pa.int64()), NOW_US),
        (pa.array([7], pa.uint16()), 7000),
        (pa.array([datetime(1970, 1, 2, tzinfo=UTC)]), 86_400_000_000),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_every_kind_of_timestamp_becomes_utc_microseconds(array: pa.Array[Any], expected_us: int) -> None:
    columns = canonical(pa.record_batch({"timestamp": array, "value": pa.array([b""])}))
    assert columns.column("timestamp").type == TIMESTAMP_TYPE
    assert columns.column("timestamp").view(pa.int64()).to_pylist() == [expected_us]


HEADER_ROWS: list[list[tuple[str, bytes | None]]] = [[("a", b"1"), ("a", None)], [], [("b", b"")]]
HEADER_DICTS = [[{"key": key, "value": value} for key, value in row] for row in HEADER_ROWS]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(HEADER_ROWS, pa.map_(pa.string(), pa.binary())),
        pa.array([[(k.encode(), v) for k, v in row] for row in HEADER_ROWS], pa.map_(pa.binary(), pa.large_binary())),
        pa.array(HEADER_DICTS, pa.large_list(HEADERS_TYPE.value_type)),
        pa.array(HEADER_DICTS, pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.binary())]))),
        pa.array(HEADER_DICTS, pa.list_(pa.field("element", HEADERS_TYPE.value_type, nullable=False))),
    ],
    ids=lambda array: str(array.type)[:30],
)
def test_every_kind_of_headers_becomes_lists_of_structs(array: pa.Array[Any]) -> None:
    columns = canonical(pa.record_batch({"value": pa.nulls(3, pa.binary()), "headers": array}))
    flags_of(columns.schema)
    assert columns.column("headers").to_pylist() == HEADER_DICTS


def test_null_header_lists_become_empty_even_when_they_hide_something() -> None:
    hidden = pa.ListArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()),
        pa.array([{"key": key, "value": b""} for key in "abc"], HEADERS_TYPE.value_type),
        mask=pa.array([False, True, False]),
    )
    columns = canonical(pa.record_batch({"value": pa.nulls(3, pa.binary()), "headers": hidden}))
    keys = [[pair["key"] for pair in one] for one in rows(columns, "headers")]
    assert keys == [["a"], [], ["c"]]
    assert columns.column("headers").null_count == 0
    sliced = pa.record_batch({"value": pa.nulls(2, pa.binary()), "headers": hidden.slice(1)})
    assert [len(one) for one in rows(canonical(sliced), "headers")] == [0, 1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [b"a"], "payload": [b"b"]}, "unknown columns"),
        ({"key": [b"a"]}, "include value"),
        ({"value": pa.array([[b"a"]])}, "column value"),
        ({"value": [b"a"], "headers": [b"b"]}, "column headers"),
    ],
)
def test_columns_that_do_not_cast(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        canonical(pa.record_batch(columns))


def test_repeated_column_is_refused() -> None:
    with pytest.raises(TypeError, match="unique"):
        canonical(pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([b"b"])], names=["value", "value"]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": [b"a"], "timestamp": pa.array([None], TIMESTAMP_TYPE)}, "timestamp"),
        ({"value": [b"a"], "timestamp": pa.array([2**62], pa.timestamp("s"))}, "timestamp"),
        ({"value": [b"a"], "timestamp": pa.array([NOW_US], pa.int64())}, "in microseconds, but milliseconds"),
        ({"value": [b"a"], "timestamp": pa.array([2**62], pa.int64())}, "timestamp"),
        ({"value": [b"a"], "timestamp": pa.array([-1], TIMESTAMP_TYPE)}, "1970"),
        ({"value": [b"a"], "tag": pa.array([b"\xff"])}, "tag"),
        ({"value": [b"a"], "tag": ["x" * (TAG_BYTES_MAX + 1)]}, "tag"),
        ({"value": [b"a"], "headers": pa.array([[None]], HEADERS_TYPE)}, "headers"),
        ({"value": [b"a"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS_TYPE)}, "headers"),
    ],
    ids=[
        "no timestamp",
        "far future",
        "µs for ms",
        "huge",
        "before 1970",
        "no utf8",
        "long tag",
        "null header",
        "null header key",
    ],
)
def test_values_that_do_not_fit(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical(pa.record_batch(columns))


def test_a_slice_without_headers_leaves_the_others_behind() -> None:
    columns = columns_of([b""] * 100, headers=[[("k", b"v")]] * 50 + [None] * 50)
    part = columns.slice(60, 3)
    tight = with_tight_headers(part)
    assert tight.equals(part)
    assert tight.serialize().size < part.serialize().size
    some = columns.slice(49, 2)
    assert with_tight_headers(some) is some
    plain = columns_of([b""])
    assert with_tight_headers(plain) is plain
