from __future__ import annotations

import gzip
import zlib

import pyarrow as pa
import pytest
from tests.proto.batches import CODECS, EVERYTHING

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.compression import decompressed_message, encode_body
from tidelog_proto.batch.header import Buffer, Codec
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

COLUMNS = EVERYTHING.columns()
MESSAGE = bytes(memoryview(COLUMNS.serialize()))


def refuse(body: Buffer, codec: Codec, length: int) -> None:
    with pytest.raises(ProtocolError) as refused:
        decompressed_message(body, codec, length)
    assert refused.value.code == pb.CORRUPT_BATCH


@pytest.mark.parametrize("codec", CODECS)
def test_bodies_come_back(codec: Codec) -> None:
    body, length = encode_body(COLUMNS, codec)
    message = decompressed_message(body, codec, length)
    assert pa.ipc.read_record_batch(pa.py_buffer(message), COLUMNS.schema).equals(COLUMNS)
    if codec in {Codec.NONE, Codec.GZIP, Codec.SNAPPY}:
        assert bytes(message) == MESSAGE
        assert length == len(MESSAGE)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_compression_compresses(codec: Codec) -> None:
    columns = columns_of([b"the same again and again"] * 1000)
    body, length = encode_body(columns, codec)
    assert len(body) < length // 3
    assert abs(length - columns.serialize().size) <= 64


def test_uncompressed_length_of_compressed_buffers_is_what_they_hold() -> None:
    columns = columns_of([b"x" * 13, None, b"y"])
    for codec in (Codec.LZ4, Codec.ZSTD):
        body, length = encode_body(columns, codec)
        metadata_bytes = 8 + int.from_bytes(body[4:8], "little")
        # 1 byte of validity, 4 offsets, 14 bytes of data, each rounded up to 8
        assert length == metadata_bytes + 8 + 16 + 16


def test_gzip_is_understood_by_others() -> None:
    body, _ = encode_body(COLUMNS, Codec.GZIP)
    assert gzip.decompress(body) == MESSAGE
    assert bytes(decompressed_message(gzip.compress(MESSAGE), Codec.GZIP, len(MESSAGE))) == MESSAGE


def test_gzip_bodies_that_are_not_one_exact_member() -> None:
    good = zlib.compress(MESSAGE, 1, 31)
    for length in (0, len(MESSAGE) - 1, len(MESSAGE) + 1):
        refuse(good, Codec.GZIP, length)
    for body in (good + b"\0", good + good, good[:-1], good[: len(good) // 2], b"", b"junk", zlib.compress(MESSAGE)):
        refuse(body, Codec.GZIP, len(MESSAGE))
    refuse(good[:-8] + bytes(4) + good[-4:], Codec.GZIP, len(MESSAGE))


def test_snappy_bodies_that_do_not_hold_what_they_claim() -> None:
    good, length = encode_body(COLUMNS, Codec.SNAPPY)
    for wrong in (0, length - 1, length + 1):
        refuse(good, Codec.SNAPPY, wrong)
    for body in (b"", b"\xff", b"\xff" * 5, b"\xff" * 40, bytes(good) + b"\0", bytes(good)[:-1]):
        refuse(body, Codec.SNAPPY, length)


def test_a_snappy_claim_takes_no_memory_unless_the_header_agrees() -> None:
    claim = b"\xff\xff\xff\xff\x0f"  # 2**32 - 1 as a varint
    peak = pa.default_memory_pool().bytes_allocated()
    refuse(claim, Codec.SNAPPY, 64 * MIB)
    assert pa.default_memory_pool().bytes_allocated() == peak
