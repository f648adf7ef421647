"""The contents of an epoch in memory: blocks of batches, each with indexes like those of a segment.

The tuple of blocks and the end are replaced as a whole, never mutated. The writer appends to the newest block and then
advances the end; a reader loads the end first and the blocks after it, and reads only below that end. A truncation
replaces the block that it cuts, so a reader of the old one is not affected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from tidelog_broker.storage.engine.store import Damage, EpochStart, padded
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.active_segment import BatchFields
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_broker.storage.segment.segment_hashes import SegmentHashes
from tidelog_proto.batch.header import Buffer, unpack_header
from tidelog_proto.limits import MIB

BLOCK_BYTES: Final = MIB
"""Maximum size of a block of more than one group, unless the topic's `segment_bytes` is smaller."""


class Block:
    """Contiguous batches, which are deleted together. Positions are those that the batches would have in a file.

    Attributes:
        path: a path that names the block in messages, and identifies it.
        base_offset: offset of its first record.
        end_offset: offset after its last record.
        start_digest: the epoch's running digest at `base_offset`.
        size_bytes: the size of its batches with padding.
        batches: its batches by slot.
        index: finds slots by offset and time.
        hashes: finds slots by key and tag.
        is_growing: whether the block takes appends.
    """

    __slots__ = (
        "base_offset",
        "batches",
        "end_offset",
        "hashes",
        "index",
        "is_growing",
        "path",
        "size_bytes",
        "start_digest",
    )

    def __init__(self, path: Path, base_offset: int, start_digest: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.start_digest = start_digest
        self.size_bytes = 0
        self.batches: list[memoryview] = []
        self.index = Index()
        self.hashes = SegmentHashes(cast(File, self), self.index)
        self.is_growing = True

    def append(self, batch: Buffer, fields: BatchFields) -> None:
        """Append a copy of a batch: its memory may belong to a larger receive buffer."""
        length = len(batch)
        self.batches.append(memoryview(bytes(batch)))
        self.index.append(fields.base_offset, self.size_bytes, length, fields.max_timestamp_us)
        self.size_bytes += padded(length)
        self.end_offset = fields.base_offset + fields.last_offset_delta + 1

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Return a range of whole batches with padding between them, as `File.pread` would; used by the indexes."""
        data = bytearray(length_bytes)
        slot = self.index.slots_before_position(at, 0, len(self.index))
        while slot < len(self.index) and (place := self.index.place(slot)).position < at + length_bytes:
            data[place.position - at : place.position - at + place.length] = self.batches[slot]
            slot += 1
        return bytes(data)

    def first_batches(self, count: int) -> Block:
        """Return a growing block of the first `count` batches, whose memory both blocks share."""
        cut = Block(self.path, self.base_offset, self.start_digest)
        cut.batches = self.batches[:count]
        cut.index = self.index.first(count)
        cut.hashes = self.hashes.cut(count, cast(File, cut), cut.index)
        if count:
            place = cut.index.place(count - 1)
            cut.size_bytes = place.position + padded(place.length)
            cut.end_offset = unpack_header(cut.batches[-1], typed=True).end_offset
        return cut


class Contents:
    """The records of an epoch in memory; they outlive its store within the process.

    Attributes:
        start: the identity and the beginning of the epoch.
        blocks: oldest first, at least one.
        end: the end of the last record; the position is not used.
        is_sealed: whether the store takes no appends.
        damage: why the store is in LIMBO, None if it is not.
        written_offset: with `flush=async`, the files have the records below it; see `file_copy`.
        is_lost: whether a restart has lost records of the epoch. It stays true when the store is opened again, because
            the engine does not know whether the missing records have been fetched.
    """

    __slots__ = ("blocks", "damage", "end", "is_lost", "is_sealed", "start", "written_offset")

    def __init__(self, start: EpochStart, path: Path, *, begins_at: tuple[int, int] | None = None) -> None:
        """Create contents without records.

        Args:
            begins_at: offset and digest at which they begin, if they lack the front of the epoch.
        """
        offset, digest = begins_at or (start.offset, start.digest)
        self.start = start
        self.blocks: tuple[Block, ...] = (_block(path, offset, digest),)
        self.end = SegmentEnd(offset, 0, digest)
        self.is_sealed = False
        self.is_lost = False
        self.written_offset = offset
        self.damage: Damage | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all batches."""
        return sum(block.size_bytes for block in self.blocks)

    def append(self, batches: Sequence[Buffer], fields: Sequence[BatchFields]) -> int:
        """Append a group to the newest block; return its size."""
        block = self.blocks[-1]
        before_bytes = block.size_bytes
        for batch, batch_fields in zip(batches, fields, strict=True):
            block.append(batch, batch_fields)
        self.end = SegmentEnd(block.end_offset, 0, fields[-1].digest)
        return block.size_bytes - before_bytes

    def roll(self, path: Path) -> None:
        """Begin another block."""
        self.blocks[-1].is_growing = False
        self.blocks = (*self.blocks, _block(path, self.end.offset, self.end.digest))

    def cut(self, end_offset: int, end_digest: int) -> None:
        """Remove everything from a batch boundary on."""
        blocks = self.blocks
        number = max(0, bisect_right(blocks, end_offset, key=lambda block: block.base_offset) - 1)
        block = blocks[number]
        self.end = SegmentEnd(end_offset, 0, end_digest)
        self.blocks = (*blocks[:number], block.first_batches(block.index.slots_below(end_offset)))

    def delete_oldest(self) -> int:
        """Remove the oldest of several blocks; return its size."""
        oldest, *rest = self.blocks
        self.blocks = tuple(rest)
        return oldest.size_bytes


def _block(path: Path, base_offset: int, start_digest: int) -> Block:
    return Block(path / f"{base_offset:020d}", base_offset, start_digest)
