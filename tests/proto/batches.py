"""Shared helpers of the codec's tests: sample batches, hypothesis strategies, and damaged batches with valid CRCs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from hypothesis import strategies as st

from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import BatchHeader, Codec, Flags, flags_with_codec, unpack_header
from tidelog_proto.batch.record import Record
from tidelog_proto.limits import HEADER_BYTES

NOW_US = 1_700_000_000_000_000
CODECS = list(Codec)


@dataclass
class Given:
    """Records as a user would give them, column by column; None for a column that is left out."""

    values: list[bytes | None]
    keys: list[bytes | None] | None = None
    timestamps_us: list[int] | None = None
    headers: list[list[tuple[str, bytes | None]]] | None = None
    tags: list[str | None] | None = None

    def columns(self) -> pa.RecordBatch:
        return columns_of(
            self.values, keys=self.keys, timestamps_us=self.timestamps_us, headers=self.headers, tags=self.tags
        )

    def records(self, base_offset: int = 0, now_us: int = NOW_US) -> list[Record]:
        """Return what a reader must see, made without Arrow."""
        return [
            Record(
                base_offset + i,
                self.timestamps_us[i] if self.timestamps_us is not None else now_us,
                self.keys[i] if self.keys is not None else None,
                value,
                tuple(self.headers[i]) if self.headers is not None else (),
                self.tags[i] if self.tags is not None else None,
            )
            for i, value in enumerate(self.values)
        ]


EVERYTHING = Given(
    values=[b"one", None, b""],
    keys=[b"k", None, b""],
    timestamps_us=[NOW_US + 5, -3, NOW_US],
    headers=[[("a", b"1"), ("a", None)], [], [("\u00e9", b"")]],
    tags=["red", None, ""],
)
ONE = Given(values=[b"x" * 10])


@st.composite
def given_records(draw: st.DrawFn, max_size: int = 12) -> Given:
    """Draw records with any combination of columns."""
    columns = _columns_of(draw(st.integers(1, max_size)))
    return Given(**{name: draw(column) for name, column in columns.items()})


@cache
def _columns_of(count: int) -> dict[str, st.SearchStrategy[Any]]:
    """Make the columns of records by name. Hypothesis examines each new strategy, so there is one of each size."""

    def column(item: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() | st.lists(item, min_size=count, max_size=count)

    optional_bytes = st.none() | st.binary(max_size=40)
    header = st.tuples(st.text(max_size=8), optional_bytes)
    return {
        "values": st.lists(optional_bytes, min_size=count, max_size=count),
        "keys": column(optional_bytes),
        "timestamps_us": column(st.integers(-(2**63), 2**63 - 1)),
        "headers": column(st.lists(header, max_size=3)),
        "tags": column(st.none() | st.text(max_size=12)),
    }


def batch_of(
    body: bytes | pa.Buffer, flags: int, record_count: int, *, codec: Codec = Codec.NONE, **changes: int
) -> bytes:
    """Put a proper header, both CRCs included, in front of any body."""
    raw = bytes(memoryview(body))
    fields: dict[str, int] = {
        "uncompressed_length": len(raw),
        "last_offset_delta": record_count - 1,
        "base_timestamp_us": NOW_US,
        "max_timestamp_us": NOW_US,
        **changes,
    }
    header = BatchHeader(
        flags=flags_with_codec(flags, codec),
        body_length=len(raw),
        record_count=record_count,
        body_crc=crc32c(raw),
        **fields,  # type: ignore[arg-type]  # all fields but body_kind are ints
    )
    return header.pack() + raw


def restamped(batch: bytes | bytearray, **changes: Any) -> bytes:
    """Return the batch with header fields changed and lengths and CRCs made to match its bytes again."""
    body = bytes(batch[HEADER_BYTES:])
    header = unpack_header(batch[:HEADER_BYTES])
    uncompressed = len(body) if header.codec is Codec.NONE else header.uncompressed_length
    fixed = {"body_length": len(body), "uncompressed_length": uncompressed, "body_crc": crc32c(body), **changes}
    return header._replace(**fixed).pack() + body


def header_crc_fixed(batch: bytes | bytearray) -> bytes:
    """Return the batch with the header CRC made to match, whatever the header says."""
    raw = bytearray(batch)
    raw[124:128] = crc32c(bytes(raw[:124])).to_bytes(4, "little")
    return bytes(raw)


def arrow_body(codec: Codec = Codec.NONE, **arrays: pa.Array[Any]) -> pa.Buffer:
    """Serialize any columns, canonical or not, as one Arrow message, with Arrow's own compression if asked."""
    columns = pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))
    if codec is Codec.NONE:
        return columns.serialize()
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4" if codec is Codec.LZ4 else "zstd", use_threads=False)
    with pa.ipc.new_stream(sink, columns.schema, options=options) as writer:
        writer.write_batch(columns)
        end = sink.tell()
    stream = sink.getvalue()
    schema_bytes = 8 + int.from_bytes(memoryview(stream)[4:8], "little")
    return stream.slice(schema_bytes, end - schema_bytes)


VALUE = int(Flags.VALUE)
