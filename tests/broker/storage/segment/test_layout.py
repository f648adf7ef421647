from __future__ import annotations

from pathlib import Path

import pytest
from tests.broker.storage.build import TOPIC_ID, batch, stamp

from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.segment.active_segment import batch_fields
from tidelog_broker.storage.segment.layout import (
    MARK_BYTES,
    SegmentHeader,
    index_path,
    pack_mark,
    parse_mark,
    segment_path,
)
from tidelog_proto.batch.header import unpack_header

HEADER = SegmentHeader(
    nonce=0x0102030405060708,
    topic_id=TOPIC_ID,
    partition=3,
    epoch=4,
    base_offset=5,
    start_digest=6,
    synced_offset=7,
)
HEADER_HEX = (
    "544c5347010000000807060504030201000102030405060708090a0b0c0d0e0f0300000000000000"
    "0400000000000000050000000000000006000000000000000700000000000000"
)


def test_the_segment_header_has_the_documented_bytes() -> None:
    raw = HEADER.pack()
    assert len(raw) == 128
    assert raw[:72].hex() == HEADER_HEX
    assert raw[72:124] == bytes(52)
    assert SegmentHeader.unpack(raw) == HEADER


def test_every_flipped_bit_of_a_segment_header_is_detected() -> None:
    raw = HEADER.pack()
    for bit in range(len(raw) * 8):
        rotten = bytearray(raw)
        rotten[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LayoutError):
            SegmentHeader.unpack(rotten)
    with pytest.raises(LayoutError, match="got 127"):
        SegmentHeader.unpack(raw[:127])


def test_mark_is_valid_only_in_its_file_and_position() -> None:
    raw = pack_mark(nonce=9, position=640, synced_offset=77)
    assert len(raw) == MARK_BYTES
    assert raw[:40].hex() == "544c4d4b01000000090000000000000080020000000000004d00000000000000" + "00" * 8
    assert parse_mark(b"x" * 3 + raw, 3, nonce=9, position=640) == 77
    assert parse_mark(raw, 0, nonce=8, position=640) is None
    assert parse_mark(raw, 0, nonce=9, position=704) is None
    assert parse_mark(raw[:-1], 0, nonce=9, position=640) is None
    for byte in [*range(40), 60, 63]:
        rotten = bytearray(raw)
        rotten[byte] ^= 1
        assert parse_mark(rotten, 0, nonce=9, position=640) is None


def test_batch_fields_agree_with_the_full_header() -> None:
    raw = stamp([batch(b"body!", records=3, timestamp_us=-8)], offset=12, digest=5, epoch=2)[0]
    header, fields = unpack_header(raw), batch_fields(raw)
    assert fields.body_length == header.body_length == 5
    assert fields.last_offset_delta == header.last_offset_delta == 2
    assert fields.max_timestamp_us == header.max_timestamp_us == -8
    assert (fields.base_offset, fields.epoch, fields.digest) == (12, 2, header.digest)


def test_names_of_files() -> None:
    path = segment_path(Path("/x"), 42)
    assert path.name == "00000000000000000042.seg"
    assert index_path(path).name == "00000000000000000042.idx"
