"""Projection of a batch onto requested columns."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, EVERYTHING, NOW_US, Given, given_records
from tests.proto.derived_batches import derived, nothing_left

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import schema_of
from tidelog_proto.batch.header import COLUMN_FLAGS, BatchHeader, Codec, Flags, stamp_owner, unpack_header
from tidelog_proto.batch.projection import WHOLE_BYTES_MAX, Projection, head_alone, project
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.verification import verify_batch, verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

LONG = os.urandom(WHOLE_BYTES_MAX)
BY_BUFFER = (Codec.NONE, Codec.LZ4, Codec.ZSTD)


def stored(records: Given, codec: Codec = Codec.NONE, base_offset: int = 70) -> bytearray:
    batch = bytearray(encode_batch(records.columns(), now_us=NOW_US, codec=codec).to_bytes())
    stamp_owner(batch, base_offset=base_offset, append_timestamp_us=1, epoch=2, owner_incarnation=3, previous_digest=4)
    return batch


def long(records: Given) -> Given:
    """Return them with one value that makes the body long enough to be cut."""
    return replace(records, values=[*records.values[:-1], LONG])


def check(batch: bytes | bytearray, columns: int) -> RecordBatch:
    """Compare what is sent with what is stored."""
    whole, sent = RecordBatch.parse(batch), RecordBatch.parse(project(batch, columns))
    assert sent.offset_list() == whole.offset_list()
    assert (sent.end_offset, len(sent), sent.derived) == (whole.end_offset, len(whole), whole.derived)
    assert sent.header.append_timestamp_us == whole.header.append_timestamp_us
    wanted = [name for name in whole.columns().schema.names if name in schema_of(columns).names]
    assert set(sent.columns().schema.names) >= set(wanted)
    for name in wanted:
        assert sent.columns().column(name).equals(whole.columns().column(name)), name
    sent.columns().validate(full=True)
    return sent


@given(given_records(), st.sampled_from(CODECS), st.integers(0, COLUMN_FLAGS))
@settings(max_examples=150)
def test_requested_columns_are_unchanged(records: Given, codec: Codec, columns: int) -> None:
    batch = stored(long(records), codec)
    sent = check(batch, columns)
    flags = unpack_header(batch).flags
    if codec in BY_BUFFER:
        assert sent.header.flags & COLUMN_FLAGS == flags & columns
    after = sent.slice_from(sent.base_offset + 1)
    assert after.offset_list() == sent.offset_list()[1:]


@given(given_records(), st.integers(0, COLUMN_FLAGS), st.data())
@settings(max_examples=80)
def test_derived_batches_keep_their_gaps(records: Given, columns: int, data: st.DataObject) -> None:
    count = len(records.values)
    offsets = sorted(data.draw(st.sets(st.integers(10, 90), min_size=count, max_size=count)))
    sent = check(derived(long(records), offsets, base=10, end=100), columns)
    assert sent.offset_list() == offsets
    assert sent.header.flags & COLUMN_FLAGS & ~columns == 0


def test_other_columns_are_omitted() -> None:
    records = replace(EVERYTHING, values=[LONG * 100, None, LONG])
    batch = stored(records)
    assert len(project(batch, Flags.KEY)) < 1000
    assert len(project(batch, 0)) == HEADER_BYTES
    assert project(batch, COLUMN_FLAGS) is batch
    assert len(project(batch, Flags.VALUE)) < len(batch)
    compressed = stored(records, Codec.GZIP)
    assert project(compressed, Flags.KEY) is compressed, "it cannot be cut"
    assert len(project(compressed, 0)) == HEADER_BYTES
    short = stored(EVERYTHING)
    assert project(short, Flags.KEY) is short
    empty = nothing_left(base=5, end=9)
    assert project(empty, 0) is empty


def test_control_batches_stay_so() -> None:
    batch = encode_batch(Given([b"x"]).columns(), now_us=0, control=True).to_bytes()
    assert RecordBatch.parse(project(batch, 0)).control


def test_damage_gets_no_new_crc() -> None:
    batch = stored(long(EVERYTHING))
    for at in range(HEADER_BYTES, len(batch), 97):
        damaged = bytearray(batch)
        damaged[at] ^= 0x10
        with pytest.raises(ProtocolError) as refused:
            project(damaged, Flags.KEY)
        assert refused.value.code == pb.CORRUPT_BATCH
    damaged = bytearray(batch)
    damaged[20] ^= 1
    with pytest.raises(ProtocolError, match="CRC32C"):
        project(damaged, 0)


@pytest.mark.parametrize("columns", [0, Flags.KEY])
def test_nodes_store_no_such_batch(columns: int) -> None:
    sent = project(stored(long(EVERYTHING)), columns)
    for verify in (verify_batch, verify_stored):
        with pytest.raises(ProtocolError, match="allows here only the bits") as refused:
            verify(sent)
        assert refused.value.code == pb.UNSUPPORTED_BATCH


def test_a_batch_without_columns_has_no_body() -> None:
    header = unpack_header(head_alone(unpack_header(stored(EVERYTHING))), is_sent=True)
    changes: tuple[dict[str, Any], ...] = ({"body_length": 8}, {"uncompressed_length": 8}, {"body_crc": 1})
    for change in changes:
        with pytest.raises(ProtocolError, match="must not have a body"):
            RecordBatch.parse(header._replace(**change).pack() + bytes(8))


def test_a_message_is_what_every_arrow_reader_takes() -> None:
    for codec in BY_BUFFER:
        sent = project(stored(long(EVERYTHING), codec), Flags.KEY | Flags.TAG)
        flags = unpack_header(sent, is_sent=True).flags
        read = pa.ipc.read_record_batch(pa.py_buffer(bytes(sent[HEADER_BYTES:])), schema_of(flags))
        assert read.to_pydict() == {"key": EVERYTHING.keys, "tag": EVERYTHING.tags}


@pytest.mark.parametrize(
    ("from_us", "until_us", "skipped"),
    [(None, None, False), (20, None, False), (21, None, True), (None, 10, True), (None, 11, False), (20, 21, False)],
)
def test_times(from_us: int | None, until_us: int | None, skipped: bool) -> None:
    header = BatchHeader(0, 0, 0, 2, 0, base_timestamp_us=10, max_timestamp_us=20)
    assert Projection(0, from_us, until_us).skips(header) is skipped
