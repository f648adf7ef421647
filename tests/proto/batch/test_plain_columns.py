"""Columns that are read without pyarrow are those that pyarrow reads."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog_proto.batch.header import Codec, Flags
from tidelog_proto.batch.plain_columns import PlainColumn, PlainColumns
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, plain_columns_of
from tidelog_proto.batch.verification import verify_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

NOW_US = 1_700_000_000_000_000
ENTRIES = st.lists(st.binary(max_size=20), min_size=1, max_size=30)


def read(columns: pa.RecordBatch, codec: Codec = Codec.NONE) -> RecordBatch:
    return RecordBatch.parse(encode_batch(columns, now_us=NOW_US, codec=codec).to_bytes())


def texts_of(column: PlainColumn) -> list[bytes]:
    return [column.data[begin:end] for begin, end in pairwise(column.offsets)]


def entries(columns: PlainColumns) -> tuple[Any, ...]:
    stamps, *texts = columns
    return (stamps, *(None if text is None else texts_of(text) for text in texts))


@given(values=ENTRIES, data=st.data())
def test_plain_columns_are_those_of_pyarrow(values: list[bytes], data: st.DataObject) -> None:
    count = len(values)
    keys = data.draw(st.none() | st.lists(st.binary(max_size=9), min_size=count, max_size=count))
    tags = data.draw(st.none() | st.lists(st.text(max_size=9), min_size=count, max_size=count))
    stamps = data.draw(st.none() | st.lists(st.integers(0, 2**60), min_size=count, max_size=count))
    batch = read(columns_of(values, keys=keys, tags=tags, timestamps_us=stamps))
    columns = plain_columns_of(batch)
    assert columns is not None
    expected_tags = None if tags is None else [tag.encode() for tag in tags]
    assert entries(columns) == (None if stamps is None else tuple(stamps), keys, values, expected_tags)
    assert batch.values() == values


@given(values=ENTRIES, begin=st.integers(0, 29), count=st.integers(1, 30))
def test_columns_that_were_cut_are_read_in_full(values: list[bytes], begin: int, count: int) -> None:
    sliced = columns_of(values, timestamps_us=list(range(len(values)))).slice(min(begin, len(values) - 1), count)
    batch = read(sliced)
    columns = plain_columns_of(batch)
    if columns is not None:
        assert columns.value is not None
        assert texts_of(columns.value) == batch.values()
        assert list(columns.timestamps_us or ()) == batch.timestamps_us()


def test_other_batches_are_left_to_pyarrow() -> None:
    assert plain_columns_of(read(columns_of([b"a", None]))) is None
    assert plain_columns_of(read(columns_of([b"a", b"b"], keys=[None, b"k"]))) is None
    assert plain_columns_of(read(columns_of([b"a"], headers=[[("name", b"value")]]))) is None
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        assert plain_columns_of(read(columns_of([b"a" * 100] * 9), codec)) is None
    assert plain_columns_of(read(columns_of([b"a", b"b"])).slice_from(1)) is None


@given(values=ENTRIES, keyed=st.booleans(), data=st.data())
def test_damaged_bodies_are_refused_or_read_as_pyarrow_reads_them(
    values: list[bytes], keyed: bool, data: st.DataObject
) -> None:
    """Bytes are changed and the CRC is made to match: the result must equal what a verifying node accepts."""
    encoded = encode_batch(columns_of(values, keys=values if keyed else None), now_us=NOW_US)
    batch = RecordBatch.parse(encoded.to_bytes())
    body = bytearray(encoded.body)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    header = batch.header._replace(body_crc=crc32c(body))
    raw = header.pack() + bytes(body)
    assert len(raw) == HEADER_BYTES + len(body)
    damaged = RecordBatch.parse(raw)
    columns = plain_columns_of(damaged)
    if columns is None:
        return
    verify_batch(raw)  # raises for what a node does not store
    assert columns.value is not None
    assert texts_of(columns.value) == damaged.values()
    if header.flags & Flags.KEY:
        assert columns.key is not None
        assert texts_of(columns.key) == damaged.keys()


@given(flags=st.integers(0, 2**20 - 1), body=st.binary(max_size=400), count=st.integers(0, 40))
def test_garbage_is_never_an_error(flags: int, body: bytes, count: int) -> None:
    header = read(columns_of([b"v"])).header._replace(flags=flags, record_count=count, body_length=len(body))
    try:
        plain_columns_of(RecordBatch(header, body))
    except ProtocolError as error:
        raise AssertionError("left to pyarrow") from error
