"""Headers of version 2, which only callers with the schemas of a topic accept."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.batches import header_crc_fixed

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import (
    TYPED_VERSION,
    VERSION,
    BatchHeader,
    Flags,
    digest_after,
    stamp_owner,
    unpack_header,
    whole_common_batch,
)
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES

TYPED = BatchHeader(
    flags=Flags.VALUE,
    body_length=0,
    uncompressed_length=0,
    record_count=3,
    body_crc=crc32c(b""),
    last_offset_delta=2,
    schema_id=7,
    schema_digest=0xA1B2C3D4,
)


def refusal(raw: bytes | bytearray) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        unpack_header(raw, typed=True)
    return refused.value


@given(number=st.integers(1, 2**32 - 1), digest=st.integers(0, 2**32 - 1), before=st.binary(max_size=9))
def test_round_trip(number: int, digest: int, before: bytes) -> None:
    header = TYPED._replace(schema_id=number, schema_digest=digest)
    raw = before + header.pack()
    assert unpack_header(raw, len(before), typed=True) == header
    assert header.typed


def test_number_and_digest_are_where_the_table_says() -> None:
    raw = TYPED.pack()
    assert (raw[4], raw[28:32], raw[108:112]) == (2, bytes([7, 0, 0, 0]), bytes.fromhex("d4c3b2a1"))
    assert raw[112:120] == bytes(8)


def test_a_header_without_a_schema_is_of_version_1_with_zeros() -> None:
    raw = TYPED._replace(schema_id=0, schema_digest=5).pack()
    assert (raw[4], raw[108:120]) == (VERSION, bytes(12))
    assert not unpack_header(raw).typed


def test_a_caller_without_schemas_gets_a_refusal_and_not_damage() -> None:
    for raw in (TYPED.pack(), TYPED._replace(schema_digest=0).pack()):
        for is_sent in (False, True):
            with pytest.raises(ProtocolError) as refused:
                unpack_header(raw, is_sent=is_sent)
            assert refused.value.code == pb.UNSUPPORTED_BATCH
            assert "typed (version 2, schema 7)" in refused.value.message


def test_the_fast_path_of_readers_leaves_a_typed_batch_to_the_refusal() -> None:
    assert whole_common_batch(TYPED._replace(schema_id=0).pack()) is not None
    assert whole_common_batch(TYPED.pack()) is None


def test_a_schema_in_version_1_is_refused() -> None:
    raw = bytearray(TYPED.pack())
    raw[4] = VERSION
    raw[108:112] = bytes(4)
    error = refusal(header_crc_fixed(raw))
    assert (error.code, "version 1 must be 0" in error.message) == (pb.UNSUPPORTED_BATCH, True)


def test_a_digest_in_version_1_is_refused() -> None:
    raw = bytearray(TYPED.pack())
    raw[4] = VERSION
    raw[28] = 0
    assert refusal(header_crc_fixed(raw)).code == pb.CORRUPT_BATCH


def test_version_2_needs_a_schema() -> None:
    raw = bytearray(TYPED._replace(schema_id=0).pack())
    raw[4] = TYPED_VERSION
    error = refusal(header_crc_fixed(raw))
    assert (error.code, "must be 1 or more" in error.message) == (pb.CORRUPT_BATCH, True)


@pytest.mark.parametrize("version", [0, 3, 255])
def test_other_versions_are_refused(version: int) -> None:
    raw = bytearray(TYPED.pack())
    raw[4] = version
    assert refusal(header_crc_fixed(raw)).code == pb.UNSUPPORTED_BATCH


@pytest.mark.parametrize("at", [6, 7, *range(112, 120)])
def test_reserved_bytes_are_zero(at: int) -> None:
    raw = bytearray(TYPED.pack())
    raw[at] = 1
    assert refusal(header_crc_fixed(raw)).code == pb.CORRUPT_BATCH


def test_control_batches_and_batches_without_records_have_no_schema() -> None:
    control = TYPED._replace(flags=Flags.VALUE | Flags.CONTROL)
    assert "control batch has schema 7" in refusal(control.pack()).message
    lowest = -(2**63)
    empty = TYPED._replace(
        flags=Flags.DERIVED, record_count=0, body_crc=0, base_timestamp_us=lowest, max_timestamp_us=lowest
    )
    assert "without records has schema 7" in refusal(empty.pack()).message
    assert unpack_header(empty._replace(schema_id=0, schema_digest=0).pack()).record_count == 0


def test_every_other_rule_of_headers_holds() -> None:
    assert refusal(TYPED._replace(record_count=0).pack()).code == pb.CORRUPT_BATCH
    assert refusal(TYPED._replace(flags=1 << 30).pack()).code == pb.UNSUPPORTED_BATCH
    assert refusal(TYPED._replace(base_timestamp_us=1).pack()).code == pb.CORRUPT_BATCH


def test_the_running_digest_covers_number_and_digest() -> None:
    raws = [bytearray(TYPED._replace(**change).pack()) for change in ({}, {"schema_id": 8}, {"schema_digest": 1})]  # type: ignore[arg-type]
    owned = {"base_offset": 5, "append_timestamp_us": 6, "epoch": 7, "owner_incarnation": 8}
    digests = [stamp_owner(raw, **owned, previous_digest=9) for raw in raws]
    assert len(set(digests)) == len(raws)
    for raw, digest in zip(raws, digests, strict=True):
        header = unpack_header(raw, typed=True)
        assert (header.digest, digest_after(raw, 0, 9)) == (digest, digest)
        assert header.schema_id in {7, 8}
    stamped = TYPED.stamped(5, 6, 7, 8, digests[0])
    assert stamped == unpack_header(raws[0], typed=True)
    assert len(raws[0]) == HEADER_BYTES
