"""The bytes in vectors/ are promises: they are read as the same fields by every version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from tests.proto.deriving import derive_batches
from tests.proto.make_typed_vectors import KEEP, derived_again, row_texts
from tests.proto.make_vectors import BATCHES, batch_vectors, frame_vectors, record_fields
from tests.proto.typed_batches import layouts_of

from tidelog_proto.batch.header import BatchHeader, Codec, Flags, digest_after
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.batch.verification import verify_batch, verify_stored
from tidelog_proto.schema.canonical_decoding import decoded_schema
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.wire.frames import FrameDecoder

FOLDER = Path(__file__).parent / "vectors"
STORED: list[dict[str, Any]] = json.loads((FOLDER / "batches.json").read_text())
DERIVED: list[dict[str, Any]] = json.loads((FOLDER / "derived.json").read_text())
TYPED: list[dict[str, Any]] = json.loads((FOLDER / "typed.json").read_text())
FRAMES: list[dict[str, Any]] = json.loads((FOLDER / "frames.json").read_text())


@pytest.mark.parametrize("vector", STORED, ids=lambda vector: vector["name"])
def test_stored_batches_are_read_as_their_fields(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    header = verify_batch(raw)
    assert header == BatchHeader(**vector["header"])
    assert header.codec is Codec[vector["codec"]]
    assert record_fields(RecordBatch.parse(raw)) == vector["records"]
    assert digest_after(raw, 0, 0xDEADBEEF) == header.digest
    assert BatchHeader(**vector["header"]).pack() == raw[:128]


@pytest.mark.parametrize("vector", STORED, ids=lambda vector: vector["name"])
def test_decoded_vectors_encode_to_the_same_bytes(vector: dict[str, Any]) -> None:
    batch = RecordBatch.parse(bytes.fromhex(vector["hex"]))
    again = encode_batch(batch.columns(), now_us=batch.header.base_timestamp_us, codec=batch.header.codec)
    read = RecordBatch.parse(again.to_bytes())
    assert read.columns().equals(batch.columns())
    assert read.timestamps_us() == batch.timestamps_us()


def test_the_stored_batches_cover_the_format() -> None:
    headers = [BatchHeader(**vector["header"]) for vector in STORED]
    assert {header.codec for header in headers} == set(Codec)
    for flag in (Flags.TIMESTAMP, Flags.KEY, Flags.VALUE, Flags.HEADERS, Flags.TAG, Flags.CONTROL):
        assert any(header.flags & flag for header in headers), flag
    assert {vector["name"] for vector in STORED} >= set(BATCHES)
    assert [vector["name"] for vector in batch_vectors()] == [vector["name"] for vector in STORED]


@pytest.mark.parametrize("vector", FRAMES, ids=lambda vector: vector["envelope"]["correlationId"])
def test_stored_frames_are_read_as_their_fields(vector: dict[str, Any]) -> None:
    (frame,) = FrameDecoder().feed(bytes.fromhex(vector["hex"]))
    assert MessageToDict(frame.envelope) == vector["envelope"]
    assert bytes(frame.attachment).hex() == vector["attachment"]


def test_frames_are_written_as_they_are_stored() -> None:
    assert frame_vectors() == FRAMES


@pytest.mark.parametrize("vector", DERIVED, ids=lambda vector: vector["name"])
def test_stored_derived_batches_are_read_as_their_fields(vector: dict[str, Any]) -> None:
    digest = 0xDEADBEEF
    for each in vector["derived"]:
        raw = bytes.fromhex(each["hex"])
        header = verify_stored(raw)
        assert header == BatchHeader(**each["header"])
        assert record_fields(RecordBatch.parse(raw)) == each["records"]
        assert digest_after(raw, 0, digest) == header.digest
        assert BatchHeader(**each["header"]).pack() == raw[:128]
        digest = header.digest


@pytest.mark.parametrize("vector", DERIVED, ids=lambda vector: vector["name"])
def test_the_same_is_derived_again(vector: dict[str, Any]) -> None:
    """Byte for byte: nodes that compact the same log with different libraries would end with different copies."""
    sources = [bytes.fromhex(one) for one in vector["sources"]]
    keep = [np.array(one, np.bool_) for one in vector["keep"]]
    made = derive_batches(sources, keep, epoch=3, previous_digest=0xDEADBEEF)
    assert [one.hex() for one in made] == [each["hex"] for each in vector["derived"]]


@pytest.mark.parametrize("vector", TYPED, ids=lambda vector: vector["name"])
def test_stored_typed_batches_are_read_as_their_rows(vector: dict[str, Any]) -> None:
    schema = decoded_schema(bytes.fromhex(vector["schema"]))
    layouts = layouts_of(schema)
    raw = bytes.fromhex(vector["hex"])
    header = verify_typed(raw, layouts)
    assert header == BatchHeader(**vector["header"])
    assert (header.codec, header.schema_digest) == (Codec[vector["name"]], schema.digest)
    assert row_texts(RecordBatch.parse(raw, layouts)) == vector["rows"]
    assert digest_after(raw, 0, 0) == header.digest
    assert header.pack() == raw[:128]
    derived = derived_again([raw], layouts)
    assert [one.hex() for one in derived] == vector["derived"]
    found = [row for one in derived for row in row_texts(RecordBatch.parse(one, layouts))]
    assert found == [row for row, kept in zip(vector["rows"], KEEP, strict=True) if kept]


def test_the_stored_typed_batches_cover_the_format() -> None:
    headers = [BatchHeader(**vector["header"]) for vector in TYPED]
    assert [header.codec for header in headers] == list(Codec)
    assert {header.flags & 0xFF for header in headers} == {int(Flags.TIMESTAMP | Flags.KEY | Flags.VALUE | Flags.TAG)}
    schema = decoded_schema(bytes.fromhex(TYPED[0]["schema"]))
    assert {field.type.kind for field in schema.fields} == set(Kind)
    assert len({tuple(vector["derived"]) for vector in TYPED}) == 1
