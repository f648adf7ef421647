"""Derived batches for tests, made by hand without `derived_batch.py`, so that readers are held to the format."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from crc32c import crc32c
from tests.proto.batches import NOW_US, Given

from tidelog_proto.batch.columns import OFFSET_DELTA, columns_of, flags_of
from tidelog_proto.batch.header import NO_TIMESTAMP_US, BatchHeader, Flags, stamp_owner, unpack_header
from tidelog_proto.batch.record_batch import encode_batch


def derived(records: Given, offsets: Sequence[int], *, base: int, end: int, **changes: Any) -> bytes:
    """Return a batch that covers `base` up to and without `end`, and has the records at `offsets`; it is not stamped
    except for its base offset."""
    stamps = records.timestamps_us or [NOW_US + offset for offset in offsets]
    columns = Given(records.values, records.keys, stamps, records.headers, records.tags).columns()
    deltas = pa.array([offset - base for offset in offsets], OFFSET_DELTA.type)
    fields = [OFFSET_DELTA, *columns.schema]
    body = memoryview(pa.RecordBatch.from_arrays([deltas, *columns.columns], schema=pa.schema(fields)).serialize())
    header = BatchHeader(
        flags=flags_of(columns.schema) | Flags.DERIVED,
        body_length=len(body),
        uncompressed_length=len(body),
        record_count=len(offsets),
        body_crc=crc32c(body),
        last_offset_delta=end - base - 1,
        base_timestamp_us=min(stamps),
        max_timestamp_us=max(stamps),
        base_offset=base,
    )
    return header._replace(**changes).pack() + bytes(body)


def nothing_left(*, base: int, end: int, **changes: Any) -> bytes:
    """Return a batch without records that covers `base` up to and without `end`."""
    header = BatchHeader(
        flags=Flags.DERIVED,
        body_length=0,
        uncompressed_length=0,
        record_count=0,
        body_crc=0,
        last_offset_delta=end - base - 1,
        base_timestamp_us=NO_TIMESTAMP_US,
        max_timestamp_us=NO_TIMESTAMP_US,
        base_offset=base,
    )
    return header._replace(**changes).pack()


SURVIVORS = (0, 1, 6, 9, 40, 60, 61)
"""The offsets of what `compacted_log` holds; each value is its offset as text."""
END_OFFSET = 80


def compacted_log() -> list[bytes]:
    """Return batches as they lie in a log: some as they were published, and what a node has left of others.

    There are gaps at the beginning, in the middle and at the end of batches, and stretches of which nothing is left, in
    the middle of the log and at its end.
    """
    log = [
        published(0, 1),
        kept([6, 9], base=2, end=20),
        nothing_left(base=20, end=40),
        kept([40], base=40, end=50),
        nothing_left(base=50, end=60),
        published(60, 61),
        nothing_left(base=62, end=END_OFFSET),
    ]
    digest, offset, stored = 0, 0, list[bytes]()
    for one in map(bytearray, log):
        digest = stamp_owner(
            one, base_offset=offset, append_timestamp_us=NOW_US, epoch=0, owner_incarnation=0, previous_digest=digest
        )
        offset = unpack_header(one).end_offset
        stored.append(bytes(one))
    return stored


def published(*offsets: int) -> bytes:
    """Return a batch of a producer whose values are these numbers."""
    return encode_batch(columns_of([b"%d" % offset for offset in offsets]), now_us=NOW_US).to_bytes()


def kept(offsets: Sequence[int], *, base: int, end: int) -> bytes:
    """Return a derived batch whose values are its offsets."""
    return derived(Given([b"%d" % offset for offset in offsets]), offsets, base=base, end=end)


STARTS = sorted(
    {0, END_OFFSET, *itertools.chain.from_iterable((at, at + 1) for at in (1, 2, 6, 9, 19, 30, 39, 40, 61))}
)
"""Start offsets of reads: at records, after them, and in gaps."""


def survivors_from(offset: int, end: int = END_OFFSET) -> list[int]:
    """Return the offsets of the records that are left from `offset` on."""
    return [each for each in SURVIVORS if offset <= each < end]
