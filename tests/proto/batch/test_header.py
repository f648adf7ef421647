from __future__ import annotations

from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.proto.batches import header_crc_fixed

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import header as header_module
from tidelog_proto.batch.header import (
    NO_TIMESTAMP_US,
    OFFSET_MAX,
    VERSION,
    BatchHeader,
    Codec,
    Flags,
    batch_length,
    claims_plain,
    digest_after,
    flags_with_codec,
    stamp_owner,
    unpack_header,
)
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    BATCH_RECORDS_MAX,
    BATCH_UNCOMPRESSED_BYTES_MAX,
    DERIVED_EXTRA_BYTES,
    HEADER_BYTES,
)

PLAIN = BatchHeader(
    flags=Flags.VALUE, body_length=100, uncompressed_length=100, record_count=3, body_crc=1, last_offset_delta=2
)

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def headers(draw: st.DrawFn) -> BatchHeader:
    count = draw(st.integers(1, BATCH_RECORDS_MAX))
    stamps = sorted([draw(i64), draw(i64)])
    return BatchHeader(
        flags=flags_with_codec(draw(st.integers(0, 31)) | Flags.CONTROL, draw(st.sampled_from(Codec))),
        body_length=draw(st.integers(0, BATCH_BYTES_MAX - HEADER_BYTES)),
        uncompressed_length=draw(st.integers(0, BATCH_UNCOMPRESSED_BYTES_MAX)),
        record_count=count,
        body_crc=draw(st.integers(0, 2**32 - 1)),
        producer_id=draw(u64),
        base_sequence=draw(u64),
        producer_epoch=draw(st.integers(0, 2**32 - 1)),
        last_offset_delta=count - 1,
        base_timestamp_us=stamps[0],
        max_timestamp_us=stamps[1],
        base_offset=draw(u64),
        append_timestamp_us=draw(i64),
        epoch=draw(u64),
        owner_incarnation=draw(u64),
        digest=draw(st.integers(0, 2**32 - 1)),
    )


def refusal(raw: bytes | bytearray) -> ProtocolError:
    with pytest.raises(ProtocolError) as refused:
        unpack_header(raw)
    return refused.value


@given(header=headers(), before=st.binary(max_size=9))
def test_round_trip_at_any_position(header: BatchHeader, before: bytes) -> None:
    raw = before + header.pack() + b"behind"
    assert unpack_header(raw, len(before)) == header
    assert unpack_header(memoryview(raw), len(before)) == header


def test_every_field_is_where_the_table_says() -> None:
    header = BatchHeader(
        flags=0x00020305,
        body_length=0x0000_0A0B,
        uncompressed_length=0x0C0D,
        record_count=0x0E0F,
        body_crc=0x10111213,
        schema_id=0,
        producer_id=0x1415161718191A1B,
        base_sequence=0x1C1D1E1F20212223,
        producer_epoch=0x24252627,
        last_offset_delta=0x0E0E,
        base_timestamp_us=-2,
        max_timestamp_us=0x28292A2B,
        base_offset=0x2C2D2E2F30313233,
        append_timestamp_us=-1,
        epoch=0x34353637,
        owner_incarnation=0x38393A3B,
        sequence_span=0x4041,
        digest=0x3C3D3E3F,
    )
    raw = header.pack()
    table = {
        (0, 4): int.from_bytes(b"TLRB", "little"),
        (4, 1): VERSION,
        (5, 1): 1,
        (6, 2): 0,
        (8, 4): header.flags,
        (12, 4): header.body_length,
        (16, 4): header.uncompressed_length,
        (20, 4): header.record_count,
        (24, 4): header.body_crc,
        (28, 4): 0,
        (32, 8): header.producer_id,
        (40, 8): header.base_sequence,
        (48, 4): header.producer_epoch,
        (52, 4): header.last_offset_delta,
        (56, 8): 2**64 - 2,
        (64, 8): header.max_timestamp_us,
        (72, 8): header.base_offset,
        (80, 8): 2**64 - 1,
        (88, 8): header.epoch,
        (96, 8): header.owner_incarnation,
        (104, 4): header.sequence_span,
        (108, 12): 0,
        (120, 4): header.digest,
        (124, 4): crc32c(raw[:124]),
    }
    assert sum(size for _, size in table) == HEADER_BYTES == len(raw)
    for (at, size), value in table.items():
        assert int.from_bytes(raw[at : at + size], "little") == value, at
    assert unpack_header(raw) == header


def test_the_documentation_has_the_same_table() -> None:
    def rows(text: str) -> list[list[str]]:
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        return [[row[0], row[1], row[3]] for row in cells if len(row) == 4 and row[0].isdigit()]

    described = rows(header_module.__doc__ or "")
    assert len(described) == 25
    documented = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    assert rows(documented.partition("### Header\n")[2].partition("\n###")[0]) == described


def test_every_flipped_bit_is_noticed() -> None:
    raw = PLAIN.pack()
    for at in range(HEADER_BYTES):
        for bit in range(8):
            bad = bytearray(raw)
            bad[at] ^= 1 << bit
            assert refusal(bad).code == pb.CORRUPT_BATCH


def test_short_headers() -> None:
    for length in range(HEADER_BYTES):
        assert refusal(PLAIN.pack()[:length]).code == pb.CORRUPT_BATCH


@pytest.mark.parametrize(
    ("at", "value", "code"),
    [
        (4, VERSION + 1, pb.UNSUPPORTED_BATCH),
        (5, 2, pb.UNSUPPORTED_BATCH),
        (6, 1, pb.CORRUPT_BATCH),
        (108, 1, pb.CORRUPT_BATCH),
        (119, 1, pb.CORRUPT_BATCH),
    ],
)
def test_fixed_bytes_with_a_matching_crc(at: int, value: int, code: int) -> None:
    raw = bytearray(PLAIN.pack())
    raw[at] = value
    assert refusal(header_crc_fixed(raw)).code == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"flags": 1 << 5}, pb.UNSUPPORTED_BATCH),
        ({"flags": 1 << 31}, pb.UNSUPPORTED_BATCH),
        ({"flags": 5 << 8}, pb.UNSUPPORTED_BATCH),
        ({"flags": 15 << 8}, pb.UNSUPPORTED_BATCH),
        ({"schema_id": 1}, pb.UNSUPPORTED_BATCH),
        ({"body_length": BATCH_BYTES_MAX - HEADER_BYTES + 1}, pb.BATCH_TOO_LARGE),
        ({"body_length": 2**32 - 1}, pb.BATCH_TOO_LARGE),
        ({"uncompressed_length": BATCH_UNCOMPRESSED_BYTES_MAX + 1}, pb.BATCH_TOO_LARGE),
        ({"record_count": 0, "last_offset_delta": 2**32 - 1}, pb.CORRUPT_BATCH),
        ({"record_count": BATCH_RECORDS_MAX + 1, "last_offset_delta": BATCH_RECORDS_MAX}, pb.CORRUPT_BATCH),
        ({"last_offset_delta": 3}, pb.CORRUPT_BATCH),
        ({"last_offset_delta": 1}, pb.CORRUPT_BATCH),
        ({"last_offset_delta": 1, "flags": int(Flags.DERIVED)}, pb.CORRUPT_BATCH),
        ({"base_timestamp_us": 1}, pb.CORRUPT_BATCH),
    ],
    ids=str,
)
def test_values_that_no_batch_has(changes: dict[str, int], code: int) -> None:
    assert refusal(PLAIN._replace(**changes).pack()).code == code  # type: ignore[arg-type]  # ints, all of them


DERIVED = PLAIN._replace(
    flags=Flags.VALUE | Flags.TIMESTAMP | Flags.DERIVED,
    producer_id=0,
    producer_epoch=0,
    base_sequence=0,
    last_offset_delta=10,
    base_offset=5,
)
EMPTY = BatchHeader(
    Flags.DERIVED, 0, 0, 0, 0, last_offset_delta=9, base_timestamp_us=NO_TIMESTAMP_US, max_timestamp_us=NO_TIMESTAMP_US
)


def test_a_derived_batch_may_have_gaps() -> None:
    assert unpack_header(DERIVED.pack()).end_offset == 16
    assert unpack_header(DERIVED._replace(last_offset_delta=2**32 - 1).pack()).end_offset == 5 + 2**32


@pytest.mark.parametrize(
    "changes",
    [
        {"last_offset_delta": PLAIN.record_count - 2},
        {"flags": Flags.VALUE | Flags.DERIVED},
        {"flags": Flags.TIMESTAMP | Flags.DERIVED},
        {"flags": flags_with_codec(DERIVED.flags, Codec.GZIP)},
        {"flags": flags_with_codec(DERIVED.flags, Codec.SNAPPY)},
        {"producer_id": 1},
        {"producer_epoch": 1},
        {"base_sequence": 1},
        {"base_offset": OFFSET_MAX - 10},
        {"record_count": BATCH_RECORDS_MAX + 1, "last_offset_delta": BATCH_RECORDS_MAX},
    ],
    ids=str,
)
def test_invalid_derived_header_is_refused(changes: dict[str, int]) -> None:
    refused = refusal(DERIVED._replace(**changes).pack())  # type: ignore[arg-type]  # ints, all of them
    assert refused.code == pb.CORRUPT_BATCH


def test_a_batch_without_records_is_derived_and_nothing_but_a_header() -> None:
    assert unpack_header(EMPTY.pack()) == EMPTY
    assert batch_length(EMPTY.pack()) == HEADER_BYTES
    for changes in (
        {"flags": Flags.VALUE},
        {"flags": Flags.DERIVED | Flags.VALUE},
        {"flags": Flags.DERIVED | Flags.CONTROL},
        {"flags": flags_with_codec(Flags.DERIVED, Codec.LZ4)},
        {"body_length": 1},
        {"uncompressed_length": 1},
        {"body_crc": 1},
        {"base_timestamp_us": NO_TIMESTAMP_US, "max_timestamp_us": 0},
        {"base_timestamp_us": 0, "max_timestamp_us": 0},
        {"producer_id": 1},
    ):
        refused = refusal(EMPTY._replace(**changes).pack() + b"\0")  # type: ignore[arg-type]  # as above
        assert refused.code == pb.CORRUPT_BATCH, changes


def test_derived_batches_may_be_a_little_longer() -> None:
    for field, most in (
        ("body_length", BATCH_BYTES_MAX - HEADER_BYTES),
        ("uncompressed_length", BATCH_UNCOMPRESSED_BYTES_MAX),
    ):
        for header, extra in ((PLAIN, 0), (DERIVED, DERIVED_EXTRA_BYTES)):
            unpack_header(header._replace(**{field: most + extra}).pack())  # type: ignore[arg-type]  # as above
            too_long = header._replace(**{field: most + extra + 1}).pack()  # type: ignore[arg-type]  # as above
            assert refusal(too_long).code == pb.BATCH_TOO_LARGE


def test_properties() -> None:
    header = PLAIN._replace(flags=flags_with_codec(Flags.VALUE | Codec.GZIP << 8, Codec.SNAPPY), base_offset=40)
    assert header.codec is Codec.SNAPPY
    assert header.length == 228
    assert header.end_offset == 43


def test_the_owner_writes_its_fields_and_nothing_else() -> None:
    body = b"b" * 100
    buffer = bytearray(PLAIN.pack() + body)
    digest = stamp_owner(
        buffer, base_offset=9, append_timestamp_us=8, epoch=7, owner_incarnation=6, previous_digest=0xABCD
    )
    stamped = unpack_header(buffer)
    assert stamped == PLAIN._replace(base_offset=9, append_timestamp_us=8, epoch=7, owner_incarnation=6, digest=digest)
    assert bytes(buffer) == stamped.pack() + body
    assert digest == crc32c(bytes(buffer[:120]), 0xABCD) == digest_after(b"??" + buffer, 2, 0xABCD)
    changed = {name for name in PLAIN._fields if getattr(PLAIN, name) != getattr(stamped, name)}
    assert changed == {"base_offset", "append_timestamp_us", "epoch", "owner_incarnation", "digest"}


def test_equal_digests_mean_equal_prefixes() -> None:
    def chain(body_crcs: list[int]) -> int:
        digest = 0
        for offset, body_crc in enumerate(body_crcs):
            buffer = bytearray(PLAIN._replace(body_crc=body_crc).pack())
            digest = stamp_owner(
                buffer,
                base_offset=3 * offset,
                append_timestamp_us=0,
                epoch=1,
                owner_incarnation=1,
                previous_digest=digest,
            )
        return digest

    assert chain([1, 2, 3]) == chain([1, 2, 3])
    assert len({chain(crcs) for crcs in ([1, 2, 3], [1, 3, 2], [1, 2], [9, 2, 3], [1, 2, 4])}) == 5


def test_length_of_a_batch_without_reading_all_of_it() -> None:
    whole = PLAIN.pack() + bytes(100)
    assert batch_length(whole) == batch_length(b"xyz" + whole, 3) == 228
    for bad, code in (
        (whole[:-1], pb.CORRUPT_BATCH),
        (whole[:127], pb.CORRUPT_BATCH),
        (bytes(200), pb.CORRUPT_BATCH),
        (whole[:12] + b"\xff\xff\xff\xff" + whole[16:], pb.BATCH_TOO_LARGE),
    ):
        with pytest.raises(ProtocolError) as refused:
            batch_length(bad)
        assert refused.value.code == code


def test_a_claim_to_be_uncompressed_is_read_without_checks() -> None:
    plain = bytearray(PLAIN.pack())
    packed = bytearray(PLAIN._replace(flags=flags_with_codec(Flags.VALUE, Codec.ZSTD)).pack())
    plain[-1] ^= 1
    packed[-1] ^= 1
    assert claims_plain(plain)
    assert not claims_plain(packed)
    assert claims_plain(b"short")
