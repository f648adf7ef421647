"""Writes the test vectors: `python -m tests.proto.make_vectors`.

They are written once per version of the format and then kept: every reader, in any language and any later version, must
decode these bytes to these fields. A new pyarrow may write other bytes for the same columns, which is allowed; run this
only to add vectors, and look at the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict
from tests.proto.batches import EVERYTHING, Given
from tests.proto.deriving import derive_batches

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.deduplication import without_dropped
from tidelog_proto.batch.header import Codec, stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.wire.frames import encode_frame

FOLDER = Path(__file__).parent / "vectors"

BATCHES: dict[str, Given] = {
    "one value": Given(values=[b"hello"]),
    "tombstones": Given(values=[None, None], keys=[b"gone", b"too"]),
    "null keys": Given(values=[b"a", b"b", b"c"], keys=[None, b"k", None]),
    "headers": Given(values=[b"a", b"b"], headers=[[("h", b"1"), ("h", None)], []]),
    "no headers anywhere": Given(values=[b"a"], headers=[[]]),
    "tags": Given(values=[b"a", b"b"], tags=["red", None]),
    "timestamps": Given(values=[b"a", b"b"], timestamps_us=[1_357_034_400_000_000, -1]),
    "all columns": EVERYTHING,
}


def record_fields(batch: RecordBatch) -> list[dict[str, Any]]:
    """Return the records as JSON keeps them: bytes in hex."""

    def hexed(value: bytes | None) -> str | None:
        return None if value is None else value.hex()

    return [
        {
            "offset": record.offset,
            "timestamp_us": record.timestamp_us,
            "key": hexed(record.key),
            "value": hexed(record.value),
            "headers": [[name, hexed(value)] for name, value in record.headers],
            "tag": record.tag,
        }
        for record in batch
    ]


def batch_vector(
    name: str, records: Given, codec: Codec, *, control: bool = False, keep: list[bool] | None = None
) -> dict[str, Any]:
    """Return one batch as an owner stored it, perhaps without the records that it has dropped: hex in, fields out."""
    encoded = encode_batch(
        records.columns(),
        now_us=1_700_000_000_000_000,
        codec=codec,
        producer_id=0x0102030405060708,
        producer_epoch=9,
        base_sequence=10,
        control=control,
    )
    raw = bytearray(encoded.to_bytes())
    if keep is not None:
        raw = without_dropped(RecordBatch.parse(raw), np.array(keep, np.bool_))
    stamp_owner(
        raw,
        base_offset=1000,
        append_timestamp_us=1_700_000_000_000_500,
        epoch=3,
        owner_incarnation=12,
        previous_digest=0xDEADBEEF,
    )
    batch = RecordBatch.parse(raw)
    return {
        "name": name,
        "codec": codec.name,
        "hex": raw.hex(),
        "header": batch.header._asdict(),
        "records": record_fields(batch),
    }


def batch_vectors() -> list[dict[str, Any]]:
    """Return every batch uncompressed, and the fullest one in every codec and as a control batch."""
    vectors = [batch_vector(name, records, Codec.NONE) for name, records in BATCHES.items()]
    vectors += [batch_vector(f"all columns, {codec.name}", EVERYTHING, codec) for codec in Codec if codec]
    vectors.append(batch_vector("control", BATCHES["one value"], Codec.NONE, control=True))
    vectors.append(batch_vector("thinned", EVERYTHING, Codec.LZ4, keep=[True, False, True]))
    return [*vectors, batch_vector("duplicates alone", EVERYTHING, Codec.NONE, keep=[False] * 3)]


DERIVATIONS: dict[str, tuple[list[tuple[Given, Codec]], list[list[bool]]]] = {
    "some of one": ([(EVERYTHING, Codec.NONE)], [[False, True, True]]),
    "some of several, with a gap at either end": (
        [(EVERYTHING, Codec.GZIP), (BATCHES["one value"], Codec.SNAPPY), (BATCHES["null keys"], Codec.ZSTD)],
        [[False, False, True], [True], [False, True, False]],
    ),
    "empty columns are omitted": (
        [(Given(values=[b"a"], keys=[None], headers=[[]], tags=[None]), Codec.NONE)],
        [[True]],
    ),
    "compressible columns are compressed": (
        [(Given(values=[b"again and " * 200] * 3), Codec.LZ4)],
        [[True, False, True]],
    ),
    "nothing": ([(EVERYTHING, Codec.LZ4), (BATCHES["tags"], Codec.NONE)], [[False] * 3, [False] * 2]),
}
"""Batches that follow each other, and which of their records survive."""


def derived_vectors() -> list[dict[str, Any]]:
    """Return what is made of some batches: sources and survivors in, derived batches out."""
    vectors: list[dict[str, Any]] = []
    for name, (given, keep) in DERIVATIONS.items():
        sources: list[bytes] = []
        offset = 1000
        for records, codec in given:
            raw = bytearray(encode_batch(records.columns(), now_us=1_700_000_000_000_000, codec=codec).to_bytes())
            stamp_owner(
                raw,
                base_offset=offset,
                append_timestamp_us=1_700_000_000_000_500,
                epoch=3,
                owner_incarnation=12,
                previous_digest=0xDEADBEEF,
            )
            sources.append(bytes(raw))
            offset += len(records.values)
        masks = [np.array(one, np.bool_) for one in keep]
        made = derive_batches(sources, masks, epoch=3, previous_digest=0xDEADBEEF)
        parsed = [RecordBatch.parse(one) for one in made]
        derived = [
            {"hex": raw.hex(), "header": batch.header._asdict(), "records": record_fields(batch)}
            for raw, batch in zip(made, parsed, strict=True)
        ]
        hexed = [one.hex() for one in sources]
        vectors.append({"name": name, "sources": hexed, "keep": keep, "derived": derived})
    return vectors


def frame_vectors() -> list[dict[str, Any]]:
    """Return some frames: hex in, envelope as JSON and attachment out."""
    envelopes = [
        (pb.Envelope(correlation_id=1, hello=pb.Hello(version=1, client_id="vectors")), b""),
        (
            pb.Envelope(
                correlation_id=2,
                publish=pb.Publish(entries=[pb.PublishEntry(topic_id=bytes(range(16)), partition=3, length=4)]),
            ),
            b"data",
        ),
        (pb.Envelope(correlation_id=3, error=pb.Error(code=pb.OVERLOADED, message="wait", retriable=True)), b""),
    ]
    return [
        {
            "hex": (encode_frame(envelope, len(attachment)) + attachment).hex(),
            "envelope": MessageToDict(envelope),
            "attachment": attachment.hex(),
        }
        for envelope, attachment in envelopes
    ]


def main() -> None:
    """Write all of the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, vectors in (("batches", batch_vectors()), ("derived", derived_vectors()), ("frames", frame_vectors())):
        (FOLDER / f"{name}.json").write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
