"""Derived batches: the result of removing records from stored batches, with the offsets of the others preserved.

A derived batch has the DERIVED flag and a first column `offset_delta` (u32): the offset of each record minus the
batch's base offset, ascending. **Derived batches tile**: each covers every offset from its base offset to its last
offset delta, with or without records, and the next one begins right after it. Code that uses base and end offsets
(indexes, recovery, replication, positions) therefore needs no support for gaps.

The output of `Deriver` depends only on the covered range of offsets, the surviving records (offset, columns, control
flag, and the append timestamp of their batch rounded up to a minute) and the epoch, not on how the records were
batched before. A derivation preserves all three, so deriving in several rounds gives the same bytes as
deriving the originals once, and a replica that missed a round converges with the others. The rules only depend on
survivors:

- Survivors share a batch as long as they are at most `DERIVED_RECORDS_MAX` and weigh at most `DERIVED_WEIGHT_BYTES_MAX`
  (the weight of a record is the size that its columns would have if all were present; a heavier one is alone), are all
  control records or none, have the same rounded append timestamp and the same schema (none, for canonical columns), and
  lie within `SPAN_MAX` offsets.
- The first batch begins at the start of the range or, if the first survivor is further away than a span, after as many
  whole spans without records as fit between them; every other batch begins at its first record. A batch extends to the
  next one, the last to the end of the range, but at most over one span; offsets that are still uncovered are covered by
  batches without records, of one span each except the last. A range without survivors is covered by those alone.
- The timestamp and value columns are always present; key, tag and headers if a record of the batch has one.
- The body is compressed by lz4 if it has at least 1 KiB and that saves a quarter, otherwise not; by zstd if only that
  fits a batch.
- Producer id, producer epoch, base sequence and owner incarnation are 0. A batch without records consists of a header,
  with append timestamp 0.

Rejected: keeping the codec and the exact append timestamp of the sources. Several sources may differ, and after one
round the source of a survivor is no longer known.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from crc32c import crc32c

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.canonical_columns import exact_bytes, exact_deltas, exact_headers, exact_timestamps
from tidelog_proto.batch.columns import stored_schema_of
from tidelog_proto.batch.compression import encode_body, strongest_body
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.header import (
    NO_TIMESTAMP_US,
    BatchHeader,
    Buffer,
    Codec,
    Flags,
    flags_with_codec,
    stamp_owner,
)
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.retained_records import Keep, Survivors, joined, survivor_of, survivors_of
from tidelog_proto.batch.row_layout import Layouts, RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_BYTES_MAX, DERIVED_EXTRA_BYTES, HEADER_BYTES, KIB, MIB

DERIVED_RECORDS_MAX: Final = 16 * KIB
DERIVED_WEIGHT_BYTES_MAX: Final = 1 * MIB
SPAN_MAX: Final = 2**32
"""Maximum number of offsets that one batch covers, because its last offset delta is a u32."""
_DERIVED_BYTES_MAX: Final = BATCH_BYTES_MAX + DERIVED_EXTRA_BYTES
_COMPRESSED_FROM_BYTES: Final = 1 * KIB
_WORTH_COMPRESSING: Final = 0.75


class Deriver:
    """Removes records from consecutive batches; see the module for the output.

    A deriver buffers at most the survivors of one output batch and one source batch, and returns whole batches, stamped
    and with their running digests, ready to be stored consecutively.

    Args:
        start_offset: start of the covered range, usually of an epoch: the base offset of the first batch.
        epoch: epoch of the output batches.
        previous_digest: the running digest before the range; 0 at the start of an epoch.
    """

    def __init__(self, start_offset: int, *, epoch: int, previous_digest: int = 0) -> None:
        self._epoch = epoch
        self._base = start_offset
        self._group = _Group()
        self.end_offset = start_offset
        self.digest = previous_digest

    def add(self, batch: RecordBatch, keep: Keep | None = None) -> list[bytearray]:
        """Add the next batch; return the output batches that are complete.

        Args:
            batch: a stored batch, which may be derived; not a slice of one.
            keep: which of its records survive; None for all.

        Raises:
            ValueError: the batch is a slice or does not start at the end of the last one, or `keep` does not have one
                entry per record.
            ProtocolError: CORRUPT_BATCH if the body does not decode; BATCH_TOO_LARGE as `finish`.
        """
        if batch.base_offset != self.end_offset or len(batch) != batch.header.record_count:
            raise ValueError(
                f"expected a whole batch that begins at offset {self.end_offset}, got {len(batch)} of "
                f"{batch.header.record_count} records of one that begins at {batch.base_offset}"
            )
        rows = survivors_of(batch, keep)
        self.end_offset = batch.end_offset
        done: list[bytearray] = []
        at = 0
        while rows is not None and at < rows.count:
            room = self._room(rows, at)
            if room:
                self._group.take(rows.slice(at, room))
                at += room
            else:
                done += self._make_room(int(rows.offsets[at]))
        return done

    def skip_to(self, offset: int) -> None:
        """Continue with the batch that begins at `offset`; no further record before that offset survives."""
        self.end_offset = max(self.end_offset, offset)

    def finish(self) -> list[bytearray]:
        """Return the last output batches, which extend to the end of the last source batch.

        Raises:
            ProtocolError: BATCH_TOO_LARGE if a producer compressed a record better than any codec here, and it no
                longer fits a batch. In this case the sources must be kept unchanged.
        """
        return self._tiled_to(self.end_offset)

    def _room(self, rows: Survivors, at: int) -> int:
        """Return how many of the rows from `at` on fit the open group; 0 if the group must be closed first."""
        group = self._group
        if group.rows and (rows.control, rows.append_us, rows.layout) != group.shared:
            return 0
        reach = int(np.searchsorted(rows.offsets, self._base + SPAN_MAX)) - at
        if reach <= 0:
            return 0
        before = int(rows.weights_to[at - 1]) if at else 0
        fit = int(np.searchsorted(rows.weights_to, before + DERIVED_WEIGHT_BYTES_MAX - group.weight, "right")) - at
        room = min(reach, fit, DERIVED_RECORDS_MAX - group.count)
        return max(room, 0) if group.rows else max(room, 1)

    def _make_room(self, offset: int) -> list[bytearray]:
        """Close the open group before the next survivor; without an open group, emit empty batches up to its span."""
        if self._group.rows:
            return self._tiled_to(offset)
        tiles: list[bytearray] = []
        while offset - self._base >= SPAN_MAX:
            tiles.append(self._empty(SPAN_MAX))
        return tiles

    def _tiled_to(self, end: int) -> list[bytearray]:
        """Cover all offsets up to `end`, by the open group and by batches without records."""
        tiles: list[bytearray] = []
        group, self._group = self._group, _Group()
        if group.rows:
            covered = min(end - self._base, SPAN_MAX)
            batch = _encode(group.rows, self._base, covered - 1)
            tiles.append(self._stamped(batch, covered, group.append_us))
        while self._base < end:
            tiles.append(self._empty(min(end - self._base, SPAN_MAX)))
        return tiles

    def _empty(self, covered: int) -> bytearray:
        return self._stamped(header_alone(covered - 1), covered, 0)

    def _stamped(self, batch: bytearray, covered: int, append_us: int) -> bytearray:
        self.digest = stamp_owner(
            batch,
            base_offset=self._base,
            append_timestamp_us=append_us,
            epoch=self._epoch,
            owner_incarnation=0,
            previous_digest=self.digest,
        )
        self._base += covered
        return batch


def filter_batch(
    view: Buffer, *, key: bytes | None = None, tag: str | None = None, layouts: Layouts | None = None
) -> Buffer | None:
    """Return the matching records of a stored batch: `view` itself if all match, None if no record matches.

    Otherwise the result is a derived batch that covers the same offsets, with the batch's epoch and append timestamp.
    The derived batch is not part of a log: its digest has no predecessor. Records of control batches never match.

    Args:
        view: header and body.
        key: match records with this key; None matches all.
        tag: match records with this tag; None matches all. With a key, both must match.
        layouts: those of the topic's schemas, by number; None refuses typed batches.

    Raises:
        ProtocolError: as `RecordBatch.parse`; BATCH_TOO_LARGE as `Deriver.finish`.
    """
    batch = RecordBatch.parse(view, layouts)
    keep = matching_rows(batch, key=key, tag=tag)
    if keep is None or keep.all():
        return None if keep is None else view
    return kept_rows(batch, keep)


def kept_rows(batch: RecordBatch, keep: Keep) -> bytearray | None:
    """Return the records `keep` of a stored batch as a derived batch, as `filter_batch` does; None for no records.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode; BATCH_TOO_LARGE as `Deriver.finish`.
    """
    rows = survivors_of(batch, keep, weighed=False)
    return None if rows is None else _covering(batch.header, rows)


def row_alone(batch: RecordBatch, row: int) -> bytearray:
    """Return the record at index `row` of a stored batch as a derived batch, as `kept_rows` does for this one.

    Raises:
        ProtocolError: as `kept_rows`.
    """
    return _covering(batch.header, survivor_of(batch, row))


def _covering(header: BatchHeader, rows: Survivors) -> bytearray:
    """Return records of a stored batch as a derived batch that covers the same offsets."""
    derived = _encode([rows], header.base_offset, header.last_offset_delta)
    stamp_owner(
        derived,
        base_offset=header.base_offset,
        append_timestamp_us=header.append_timestamp_us,
        epoch=header.epoch,
        owner_incarnation=0,
        previous_digest=0,
    )
    return derived


def matching_rows(batch: RecordBatch, *, key: bytes | None, tag: str | None) -> Keep | None:
    """Return which records of a batch match, as in `filter_batch`; None if no record matches.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    header = batch.header
    if batch.control or not header.record_count:
        return None
    keep = np.ones(header.record_count, np.bool_)
    for flag, name, expected in ((Flags.KEY, "key", key), (Flags.TAG, "tag", tag)):
        if expected is None:
            continue
        if not header.flags & flag:
            return None
        column: Any = batch.columns().column(name)
        equal: Any = pc.equal(column, pa.scalar(expected, column.type)).fill_null(False)
        keep &= equal.to_numpy(zero_copy_only=False)
    return keep if keep.any() else None


class _Group:
    """The survivors of one output batch."""

    def __init__(self) -> None:
        self.rows: list[Survivors] = []
        self.count = 0
        self.weight = 0

    @property
    def shared(self) -> tuple[bool, int, RowLayout | None]:
        """The control flag, append timestamp and layout of all survivors."""
        first = self.rows[0]
        return first.control, first.append_us, first.layout

    @property
    def append_us(self) -> int:
        return self.rows[0].append_us

    def take(self, rows: Survivors) -> None:
        self.rows.append(rows)
        self.count += rows.count
        self.weight += int(rows.weights_to[-1])


def _encode(rows: list[Survivors], base_offset: int, last_offset_delta: int) -> bytearray:
    """Return header and body of the survivors of one output batch; the owner's fields are not set.

    Raises:
        ProtocolError: BATCH_TOO_LARGE.
    """
    offsets = np.concatenate([one.offsets for one in rows])
    stamps_us = np.concatenate([one.stamps_us for one in rows])
    arrays = [exact_deltas(offsets - base_offset), exact_timestamps(stamps_us)]
    flags = Flags.DERIVED | Flags.TIMESTAMP | Flags.VALUE | (Flags.CONTROL if rows[0].control else 0)
    key = joined(rows, "key")
    if key.null_count < len(key):
        flags |= Flags.KEY
        arrays.append(exact_bytes(key))
    layout = rows[0].layout
    values = joined(rows, "value")
    arrays.append(exact_bytes(values) if layout is None else exact_values(values))
    if any("headers" in one.columns for one in rows):
        headers = joined(rows, "headers")
        if len(headers.flatten()):
            flags |= Flags.HEADERS
            arrays.append(exact_headers(headers))
    if any("tag" in one.columns for one in rows):
        tag = joined(rows, "tag")
        if tag.null_count < len(tag):
            flags |= Flags.TAG
            arrays.append(exact_bytes(tag))
    schema = stored_schema_of(flags) if layout is None else layout.stored_schema(flags)
    columns = pa.RecordBatch.from_arrays(arrays, schema=schema)
    codec, body, uncompressed_length = _body_of(columns, typed=layout is not None)
    header = BatchHeader(
        flags=flags_with_codec(flags, codec),
        body_length=len(body),
        uncompressed_length=uncompressed_length,
        record_count=len(offsets),
        body_crc=crc32c(body),
        last_offset_delta=last_offset_delta,
        base_timestamp_us=int(stamps_us.min()),
        max_timestamp_us=int(stamps_us.max()),
        schema_id=0 if layout is None else layout.number,
        schema_digest=0 if layout is None else layout.digest,
    )
    return bytearray().join((header.pack(), body))


def _body_of(columns: pa.RecordBatch, *, typed: bool) -> tuple[Codec, memoryview, int]:
    """Return codec, body and uncompressed length, which depend only on the columns."""
    codec = Codec.NONE
    body, uncompressed_length = encode_body(columns, codec, typed=typed)
    if len(body) >= _COMPRESSED_FROM_BYTES:
        smaller, length = encode_body(columns, Codec.LZ4, typed=typed)
        if len(smaller) <= len(body) * _WORTH_COMPRESSING:
            codec, body, uncompressed_length = Codec.LZ4, smaller, length
    for make in (partial(encode_body, codec=Codec.ZSTD), strongest_body):
        if HEADER_BYTES + len(body) > _DERIVED_BYTES_MAX:
            codec = Codec.ZSTD
            body, uncompressed_length = make(columns, typed=typed)
    if HEADER_BYTES + len(body) > _DERIVED_BYTES_MAX:
        raise ProtocolError(
            pb.BATCH_TOO_LARGE,
            f"a derived batch of {columns.num_rows} records would have {HEADER_BYTES + len(body)} bytes after "
            f"compression; the limit is {_DERIVED_BYTES_MAX}",
        )
    return codec, body, uncompressed_length


def header_alone(last_offset_delta: int) -> bytearray:
    """Return a batch without records; the owner's fields are not set."""
    header = BatchHeader(
        flags=Flags.DERIVED,
        body_length=0,
        uncompressed_length=0,
        record_count=0,
        body_crc=0,
        last_offset_delta=last_offset_delta,
        base_timestamp_us=NO_TIMESTAMP_US,
        max_timestamp_us=NO_TIMESTAMP_US,
    )
    return bytearray(header.pack())
