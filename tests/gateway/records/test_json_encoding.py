from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.derived_batches import compacted_log

from tidelog_gateway.records.json_decoding import parse_body
from tidelog_gateway.records.json_encoding import BatchReader, json_array, payload_sizes, rows_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch


def batch_of(values: Sequence[bytes | None], *, base_offset: int = 100, **columns: Any) -> RecordBatch:
    encoded = encode_batch(columns_of(values, **columns), now_us=1_000_500)
    data = bytearray(encoded.to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=0, epoch=0, owner_incarnation=1, previous_digest=0)
    return RecordBatch.parse(bytes(data))


def read(batch: RecordBatch, records_max: int = 1000, bytes_max: int = 10**9) -> list[list[dict[str, Any]]]:
    reader = BatchReader(batch)
    pieces = []
    while len(reader):
        pieces.append(json.loads(reader.take(records_max, bytes_max).data))
    assert reader.next_offset == batch.end_offset
    return pieces


def test_rows_have_the_encoding_of_their_bytes() -> None:
    (rows,) = read(batch_of([b"text", b"\xff", None, b""], keys=[b"k", b"\xfe", None, b""]))
    assert rows == [
        {"offset": 100, "timestamp_ms": 1000, "key": "k", "value": "text", "value_encoding": "utf8"},
        {
            "offset": 101,
            "timestamp_ms": 1000,
            "key": "/g==",
            "key_encoding": "base64",
            "value": "/w==",
            "value_encoding": "base64",
        },
        {"offset": 102, "timestamp_ms": 1000, "key": None, "value": None, "value_encoding": "utf8"},
        {"offset": 103, "timestamp_ms": 1000, "key": "", "value": "", "value_encoding": "utf8"},
    ]


def test_missing_tags_and_headers_are_left_out() -> None:
    (rows,) = read(
        batch_of(
            [b"a", b"b", b"c"],
            timestamps_us=[1999, 2000, 0],
            headers=[[("h", b"1"), ("x", b"\xff")], None, [("n", None)]],
            tags=["t", None, ""],
        )
    )
    assert [row["timestamp_ms"] for row in rows] == [1, 2, 0]
    assert [row.get("headers") for row in rows] == [[["h", "1"], ["x", "/w==", "base64"]], None, [["n", None]]]
    assert [row.get("tag") for row in rows] == ["t", None, ""]
    assert "tag" not in rows[1]
    assert "headers" not in rows[1]
    (rows,) = read(batch_of([b"a", b"b", b"c"], tags=["t", None, "null"]))
    assert [row.get("tag", "absent") for row in rows] == ["t", "absent", "null"]


def test_pieces_respect_both_limits_and_always_advance() -> None:
    batch = batch_of([b"x" * 10] * 5 + [b"y" * 100] + [b"x" * 10] * 4)
    assert [len(piece) for piece in read(batch, records_max=3)] == [3, 3, 3, 1]
    assert [len(piece) for piece in read(batch, bytes_max=30)] == [3, 2, 1, 3, 1]
    assert [len(piece) for piece in read(batch, bytes_max=1)] == [1] * 10
    assert [row["offset"] for piece in read(batch, bytes_max=30) for row in piece] == list(range(100, 110))


def test_a_slice_has_the_records_of_its_range() -> None:
    batch = batch_of([b"a", b"b", b"c"], headers=[[("h", b"1")], [("h", b"22")], []]).slice_from(101)
    (rows,) = read(batch)
    assert [(row["offset"], row["value"], row.get("headers")) for row in rows] == [
        (101, "b", [["h", "22"]]),
        (102, "c", None),
    ]


def test_payload_sizes_include_every_column() -> None:
    columns = columns_of(
        [b"12345", None, b""],
        keys=[b"k", None, b"kk"],
        headers=[[("name", b"123"), ("n", None)], None, [("ab", b"")]],
        tags=["ü", None, "t"],
    )
    assert payload_sizes(columns).to_pylist() == [5 + 1 + 4 + 3 + 1 + 2, 0, 2 + 2 + 1]
    assert payload_sizes(columns.slice(2)).to_pylist() == [5]


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.binary(max_size=20)),
            st.one_of(st.none(), st.binary(max_size=20)),
            st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3),
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(1, 5),
    st.integers(0, 60),
)
@settings(max_examples=100)
def test_read_records_can_be_published_again(records: list[Any], records_max: int, bytes_max: int) -> None:
    columns = columns_of(
        [value for value, _, _ in records],
        keys=[key for _, key, _ in records],
        headers=[headers for _, _, headers in records],
    )
    encoded = encode_batch(columns, now_us=0)
    pieces = read(RecordBatch.parse(encoded.to_bytes()), records_max=records_max, bytes_max=bytes_max)
    rows = [
        {name: part for name, part in row.items() if name not in {"offset", "timestamp_ms"}}
        for piece in pieces
        for row in piece
    ]
    again = parse_body(json.dumps({"records": rows}).encode(), records_max=100, now_us=0)
    for name in ("value", "key", "headers"):
        if name in again.columns().schema.names:
            assert again.columns().column(name).to_pylist() == columns.column(name).to_pylist()


texts = st.text(st.sampled_from('ab\n\x00\x1f\x7f\x80\\",[]%€\U0001f600'), max_size=8)
literals = st.text(st.sampled_from("ab %,{}:\x7f"), max_size=8).map(str.encode)
columns_of_text = st.one_of(
    st.lists(literals, min_size=6, max_size=6),
    st.lists(st.none() | literals | texts.map(str.encode), min_size=6, max_size=6),
    st.lists(st.none() | st.binary(max_size=8), min_size=6, max_size=6),
)


@given(
    columns_of_text,
    st.none() | columns_of_text,
    st.none() | st.lists(st.none() | texts, min_size=6, max_size=6),
    st.none() | st.lists(st.integers(0, 2**53), min_size=6, max_size=6),
    st.integers(0, 5),
)
@settings(max_examples=300)
def test_an_array_equals_its_rows_as_json(
    values: list[bytes | None],
    keys: list[bytes | None] | None,
    tags: list[str | None] | None,
    timestamps_us: list[int] | None,
    first: int,
) -> None:
    batch = batch_of(values, keys=keys, tags=tags, timestamps_us=timestamps_us).slice_from(100 + first)
    columns, offsets = batch.columns(), batch.offset_list()
    expected = orjson.dumps(rows_of(columns, offsets, 1_999_999))
    assert json_array(columns, offsets, 1_999_999) == expected
    taken = BatchReader(batch).take(6, 10**6)
    assert taken.data == orjson.dumps(rows_of(columns, offsets, batch.header.base_timestamp_us))
    assert taken.payload_bytes == pc.sum(payload_sizes(columns)).as_py()


def test_records_of_a_batch_with_gaps_have_their_offsets() -> None:
    batch = RecordBatch.parse(compacted_log()[1])
    reader = BatchReader(batch)
    rows = json.loads(reader.take(1, 100).data)
    assert ([row["offset"] for row in rows], reader.next_offset) == ([6], 7)
    rows = json.loads(reader.take(1, 100).data)
    assert ([(row["offset"], row["value"]) for row in rows], reader.next_offset) == ([(9, "9")], 20)
    reader = BatchReader(batch.slice_from(8))
    assert ([row["offset"] for row in json.loads(reader.take(9, 100).data)], reader.next_offset) == ([9], 20)


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=60) | st.text('\x00\\"a\u20ac', max_size=60).map(str.encode), min_size=1, max_size=30),
    st.integers(1, 40),
    st.integers(1, 400),
    st.integers(2, 900),
)
def test_json_pieces_respect_their_limits_and_lose_nothing(
    values: list[bytes], records_max: int, bytes_max: int, json_bytes_max: int
) -> None:
    batch = batch_of(values)
    reader, rows = BatchReader(batch), list[dict[str, Any]]()
    while len(reader):
        taken = reader.take_json(records_max, bytes_max, json_bytes_max)
        piece = json.loads(taken.data)
        assert taken.records == len(piece) <= records_max
        assert len(piece) == 1 or (len(taken.data) <= json_bytes_max and taken.payload_bytes <= bytes_max)
        assert reader.next_offset == piece[-1]["offset"] + 1
        rows += piece
    assert rows == [row for piece in read(batch) for row in piece]


def test_json_pieces_of_escaped_values_are_nearly_as_long_as_the_limit() -> None:
    reader, sizes = BatchReader(batch_of([b"\x01" * 100] * 2000)), list[int]()
    while len(reader):
        sizes.append(len(reader.take_json(2000, 10**9, 50_000).data))
    assert min(sizes[:-1]) > 40_000
    assert max(sizes) <= 50_000
