"""Reading an epoch in memory on any thread, while one thread appends, truncates or deletes. Nothing is copied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

from tidelog_broker.storage.engine.reading import CandidateBatches, EpochReading, Extent, FoundBatches, Indexes
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.memory.contents import Block, Contents
from tidelog_broker.storage.segment.hash_entries import window_stop
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX, HEADER_BYTES

_ALL_WINDOWS: Final = 1 << 20


class MemoryReader(EpochReading):
    """Reads the `Contents` of an epoch. Batches are returned without copying them."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches; see `EpochReading.read`."""
        del to_send  # The batches are in memory already, which Python code may read.
        end_offset = self._contents.end.offset
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        position = offset
        for block in self._blocks_from(offset, end_offset):
            first, stop, block_end = _slots(block, position, limit_offset, end_offset)
            for slot in range(first, stop):
                batch = block.batches[slot]
                if len(batch) > left_bytes and (batches or not at_least_one):
                    return FoundBatches(batches, batches, position)
                batches.append(batch)
                left_bytes -= len(batch)
                position = block.index.offsets[slot + 1] if slot + 1 < stop else block_end
            if position < min(block.end_offset, end_offset) or left_bytes <= 0:
                break
        return FoundBatches(batches, batches, position)

    def digest_at(self, offset: int) -> int | None:
        """Return the running digest at a batch boundary; see `EpochReading.digest_at`."""
        end = self._contents.end
        if offset == end.offset:
            return end.digest
        block = self._block_of(offset, end.offset)
        if block is None:
            return None
        if offset == block.base_offset:
            return block.start_digest
        slot = block.index.slot_of(offset)
        if slot < 1 or block.index.offsets[slot] != offset:
            return None
        return unpack_header(block.batches[slot - 1], typed=True).digest

    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""
        block = self._block_of(offset, self._contents.end.offset)
        return block.index.offsets[block.index.slot_of(offset)] if block is not None else None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers from the batch that holds `from_offset` to the current end."""
        end_offset = self._contents.end.offset
        for block in self._blocks_from(from_offset, end_offset):
            for slot in range(max(0, block.index.slot_of(from_offset)), block.index.slots_below(end_offset)):
                yield unpack_header(block.batches[slot], typed=True)

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch of at least this timestamp; see `EpochReading.find_by_time`."""
        end_offset = self._contents.end.offset
        for block in self._contents.blocks:
            if min(block.end_offset, end_offset) <= from_offset:
                continue
            if block.base_offset < from_offset:
                # The index has the maximum so far, perhaps that of an earlier batch, so the headers are read instead.
                first, stop, _ = _slots(block, from_offset, end_offset, end_offset)
                for batch in block.batches[first:stop]:
                    if unpack_header(batch, typed=True).max_timestamp_us >= timestamp_us:
                        return unpack_header(batch, typed=True).base_offset
                continue
            slot = block.index.slot_of_time(timestamp_us)
            if slot is not None and block.index.offsets[slot] < end_offset:
                return block.index.offsets[slot]
        return None

    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield the extents from the batch that holds `offset` on, oldest first."""
        end_offset, blocks = self._contents.end.offset, self._contents.blocks
        position = offset
        if position < blocks[0].base_offset:
            return
        for block in blocks[bisect_right(blocks, position, key=lambda block: block.base_offset) - 1 :]:
            if position >= limit_offset:
                return
            first, stop, stop_offset = _slots(block, position, limit_offset, end_offset)
            if first < stop:
                yield BlockExtent(block, first, stop, stop_offset)
                position = stop_offset

    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the extents below `limit_offset`, newest first."""
        end_offset = self._contents.end.offset
        for block in reversed(self._contents.blocks):
            first, stop, stop_offset = _slots(block, 0, limit_offset, end_offset)
            if first < stop:
                yield BlockExtent(block, first, stop, stop_offset)

    # --------------------------------------------------------------------------------- internals

    def _block_of(self, offset: int, end_offset: int) -> Block | None:
        blocks = self._contents.blocks
        if not blocks[0].base_offset <= offset < end_offset:
            return None
        return blocks[bisect_right(blocks, offset, key=lambda block: block.base_offset) - 1]

    def _blocks_from(self, offset: int, end_offset: int) -> tuple[Block, ...]:
        """Return the blocks from the one that holds `offset` on.

        The caller reads `end_offset` first, because the writer adds blocks before it advances the end.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE.
            DamagedError: the log is in LIMBO, and the offset is after its readable end.
        """
        blocks, damage = self._contents.blocks, self._contents.damage
        start_offset = blocks[0].base_offset
        if start_offset <= offset <= end_offset:
            return blocks[max(0, bisect_right(blocks, offset, key=lambda block: block.base_offset) - 1) :]
        if damage is not None and offset > end_offset:
            raise DamagedError.at(damage.path, damage.position, damage.reason)
        start = self._contents.start
        raise ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"partition {start.partition} of topic id {start.topic_id.hex()}: offset {offset} is out of range; offsets "
            f"{start_offset} to {end_offset} can be read in epoch {start.epoch}",
            log_start_offset=start_offset,
            high_watermark=end_offset,
        )


def _slots(block: Block, offset: int, limit_offset: int, end_offset: int) -> tuple[int, int, int]:
    """Return the slots from the batch that holds `offset` on, below both limits: first, stop, and their end offset."""
    index, block_end = block.index, min(block.end_offset, end_offset)
    if offset >= block_end:
        return 0, 0, block_end
    first, readable = max(0, index.slot_of(offset)), index.slots_below(block_end)
    stop = min(readable, max(0, index.slot_of(limit_offset))) if limit_offset < block_end else readable
    return first, stop, index.offsets[stop] if stop < readable else block_end


class BlockExtent(Extent):
    """The readable batches `first` to `stop - 1` of a block."""

    def __init__(self, block: Block, first: int, stop: int, end_offset: int) -> None:
        self._block = block
        self.first = first
        self.stop = stop
        self.end_offset = end_offset

    def offset_of(self, slot: int) -> int:
        """Return the base offset of the batch in a slot; for `stop`, the end offset of the last batch."""
        return self._block.index.offsets[slot] if slot < self.stop else self.end_offset

    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""
        return self._block.index.slots_below(offset)

    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""
        return len(self._block.batches[slot])

    def span_bytes(self, first: int, stop: int) -> int:
        """Return the size of the batches `first` to `stop - 1` in bytes."""
        return sum(map(len, self._block.batches[first:stop]))

    def window_stop(self, first: int, stop: int) -> int:
        """Return the slot before which to end a read of about `WINDOW_BYTES`; see `Extent.window_stop`."""
        return window_stop(self._block.index, first, stop)

    def read(self, first: int, stop: int) -> list[memoryview]:
        """Return the batches `first` to `stop - 1`."""
        return self._block.batches[first:stop]

    def head(self, slot: int) -> memoryview:
        """Return the header of a batch."""
        return self._block.batches[slot][:HEADER_BYTES]

    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return the block's path and the batch's position in it, for messages."""
        return self._block.path, self._block.index.place(slot).position

    def prepare(self, column: TextColumn, indexes: Indexes | None) -> None:
        """Index the batches up to `stop`: a block is small."""
        del indexes
        self._block.hashes.catch_up([column], self.stop, windows_max=_ALL_WINDOWS)

    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return batches that may match; see `Extent.find`."""
        return self._block.hashes.find(column, key_hash, first, stop, count_max, newest=newest)
