from __future__ import annotations

import random
import struct
from dataclasses import replace
from time import monotonic

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas

from tidelog_proto.limits import SCHEMA_BYTES_MAX
from tidelog_proto.schema.canonical_decoding import decoded_schema
from tidelog_proto.schema.canonical_encoding import FIELD_HEADER, SCHEMA_HEADER
from tidelog_proto.schema.data_types import INT64, LIST, STRING, STRUCT, decimal128
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

SAMPLE = Schema(
    7,
    9,
    (
        Field(2, "k", STRING, required=True, role=Role.KEY),
        Field(8, "l", LIST, doc="é", children=(Field(3, ITEM, decimal128(10, 2)),)),
    ),
)
SAMPLE_BYTES = bytes.fromhex(
    "544c5343 01000000 07000000 09000000 0200"  # "TLSC", version 1, number 7, next field id 9, 2 fields
    "02000000 09 02 01 00 00 01 0000 0000 6b"  # id 2, string, key, required, "k"
    "08000000 0e 00 00 00 00 01 0200 0100 6c c3a9"  # id 8, list, "l", description, 1 child
    "03000000 08 00 00 0a 02 04 0000 0000 6974656d"  # id 3, decimal128(10, 2), "item"
)


def test_the_bytes_of_a_sample_never_change() -> None:
    assert SAMPLE.encoding == SAMPLE_BYTES
    assert SAMPLE.digest == crc32c(SAMPLE_BYTES) == 0xFF0EB5C0
    assert decoded_schema(SAMPLE_BYTES) == SAMPLE


@given(schemas())
@settings(max_examples=200)
def test_a_schema_has_one_encoding(schema: Schema) -> None:
    decoded = decoded_schema(schema.encoding)
    assert decoded == schema
    assert decoded.encoding == schema.encoding


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it ends after 0 bytes, and its header has 18"),
        (b"TLSX" + SAMPLE_BYTES[4:], "begins with b'TLSX' instead of b'TLSC'"),
        (SAMPLE_BYTES[:4] + b"\x02" + SAMPLE_BYTES[5:], "version 2, this build reads version 1; update it"),
        (SAMPLE_BYTES + b"\x00", "1 bytes follow its last field; read it again"),
        (SAMPLE_BYTES[:-1], "it ends within the text at byte"),
        (SAMPLE_BYTES[:-6], "it ends within the field at byte"),
        (SAMPLE_BYTES[:22] + b"\x10" + SAMPLE_BYTES[23:], "the field at byte 18 has type 16"),
        (SAMPLE_BYTES[:22] + b"\x00" + SAMPLE_BYTES[23:], "the field at byte 18 has type 0"),
        (SAMPLE_BYTES[:23] + b"\x04" + SAMPLE_BYTES[24:], "role 4"),
        (SAMPLE_BYTES[:24] + b"\x02" + SAMPLE_BYTES[25:], "required 2"),
        (SAMPLE_BYTES[:32] + b"\xff" + SAMPLE_BYTES[33:], "the text at byte 32 is not UTF-8"),
        (SAMPLE_BYTES[:8] + b"\x00" + SAMPLE_BYTES[9:], "the schema has the number 0"),
        (SAMPLE_BYTES[:12] + b"\x08" + SAMPLE_BYTES[13:], "field 'l': the id is 8; it must be 1 to 7"),
        (SAMPLE_BYTES[:25] + b"\x01" + SAMPLE_BYTES[26:], "string has a precision or scale of 1 and 0"),
        (SAMPLE_BYTES[:23] + b"\x03" + SAMPLE_BYTES[24:32] + b"_" + SAMPLE_BYTES[33:], "field '_': names that begin"),
        (bytes(SCHEMA_BYTES_MAX + 1), "a schema of 65537 bytes was given; at most 65536"),
    ],
)
def test_damaged_bytes_are_refused_with_the_place(data: bytes, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        decoded_schema(data)


def hostile(count: int, children: int) -> bytes:
    """Return an encoding whose fields announce many children."""
    data = SCHEMA_HEADER.pack(b"TLSC", 1, 1, 2**31 - 1, count)
    field = FIELD_HEADER.pack(1, STRUCT.kind, 0, 0, 0, 0, 1, 0, children) + b"a"
    return data + field * ((SCHEMA_BYTES_MAX - len(data)) // len(field))


@pytest.mark.parametrize(("count", "children"), [(65535, 0), (1, 65535), (1, 1), (2, 2), (1024, 0)])
def test_hostile_counts_are_refused_promptly(count: int, children: int) -> None:
    begun = monotonic()
    with pytest.raises(SchemaError):
        decoded_schema(hostile(count, children))
    assert monotonic() - begun < 10


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_arbitrary_fields_are_refused_or_canonical(data: bytes) -> None:
    given_bytes = SCHEMA_HEADER.pack(b"TLSC", 1, 1, 300, data[0] % 4 if data else 0) + data
    try:
        decoded = decoded_schema(given_bytes)
    except SchemaError:
        return
    assert decoded.encoding == given_bytes


def test_changed_bytes_are_refused_or_the_encoding_of_another_schema() -> None:
    seeded = random.Random(5)
    original = EVERY_TYPE.encoding
    accepted = 0
    for _ in range(5_000):
        data = bytearray(original)
        for _ in range(seeded.randint(1, 3)):
            data[seeded.randrange(len(data))] = seeded.choice([0, 1, 0xFF, seeded.randrange(256)])
        if seeded.random() < 0.2:
            del data[seeded.randrange(len(data)) :]
        try:
            decoded = decoded_schema(bytes(data))
        except SchemaError:
            continue
        accepted += 1
        assert decoded.encoding == data
    assert accepted > 50, "such as with other ids, names or descriptions"


def test_a_largest_schema_is_read() -> None:
    fields = [Field(0, f"f{i:03}", INT64, doc="x" * 200) for i in range(256)]
    schema = schema_of(*fields)
    assert decoded_schema(schema.encoding) == schema


def test_the_header_of_a_field_has_a_fixed_size() -> None:
    assert FIELD_HEADER.size == 14
    assert struct.calcsize(SCHEMA_HEADER.format) == 18
    longer = replace(SAMPLE, fields=(replace(SAMPLE.fields[0], name="key"), SAMPLE.fields[1]))
    assert len(longer.encoding) == len(SAMPLE.encoding) + 2
