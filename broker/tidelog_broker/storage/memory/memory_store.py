"""The store of an epoch in memory; see `memory_engine`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from tidelog_broker.storage.directory.write_guard import WriteGuard
from tidelog_broker.storage.engine.store import AppendedGroup, EpochStore, State
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.memory.contents import BLOCK_BYTES, Block, Contents
from tidelog_broker.storage.memory.memory_reader import MemoryReader
from tidelog_broker.storage.segment.active_segment import check_group
from tidelog_proto.batch.header import Buffer

MEMORY: Final = "memory"
"""The name of the memory engine."""


class Bytes(Protocol):
    """Accounts for the memory that records take; see `memory_engine.MemoryBudget`."""

    def reserve(self, topic_id: bytes, needed_bytes: int) -> int:
        """Reserve at least `needed_bytes` for a topic; return how many.

        Raises:
            MemoryFullError: they exceed the bound of the topic or of the node; nothing has changed.
        """
        ...

    def release(self, topic_id: bytes, size_bytes: int) -> None:
        """Give back reserved bytes, used or not."""
        ...


class MemoryStore(EpochStore):
    """The store of an epoch in memory. No call waits, except those that write or remove the repair marker."""

    engine = MEMORY

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        contents: Contents,
        memory: Bytes,
        *,
        segment_bytes: int,
        is_repairing: bool,
    ) -> None:
        self.directory = directory
        self.topic_id, self.partition, self.epoch = contents.start[:3]
        self._contents = contents
        self.held = contents
        self.reader = MemoryReader(contents)
        self.is_lost = contents.is_lost
        self.is_repairing = is_repairing
        self.segment_bytes = segment_bytes
        self.synced_offset = contents.end.offset
        self._memory = memory
        self._reserved_bytes = 0
        """Memory that the engine has reserved for the next groups of this store."""
        self._guard = WriteGuard(fs, directory)

    # ----------------------------------------------------------------------------------------- state

    @property
    def state(self) -> State:
        """Whether the store takes appends, and if not, why."""
        return self._guard.state(self._contents.damage, is_sealed=self._contents.is_sealed)

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self._contents.end.offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._contents.end.digest

    @property
    def segments(self) -> tuple[Block, ...]:
        """The blocks, oldest first."""
        return self._contents.blocks

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Return whether a group fits the reserved memory and the newest block."""
        contents = self._contents
        if self._guard.failure or contents.is_sealed or contents.damage is not None:
            return False
        return needed_bytes <= self._reserved_bytes and not self._must_roll(needed_bytes)

    def ensure_space(self, needed_bytes: int) -> None:
        """Reserve memory for a group, and begin another block if the newest is full.

        Raises:
            MemoryFullError: no memory is free; nothing has changed.
            LimboError: the store is in LIMBO.
            StorageFailedError: the store is closed or sealed.
        """
        self._check_writable()
        if needed_bytes > self._reserved_bytes:
            self._reserved_bytes += self._memory.reserve(self.topic_id, needed_bytes - self._reserved_bytes)
        if self._must_roll(needed_bytes):
            self._contents.roll(self.directory)

    def roll(self) -> bool:
        """Begin another block if the newest has batches; return whether it did."""
        self._check_writable()
        if not self._contents.blocks[-1].batches:
            return False
        self._contents.roll(self.directory)
        return True

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped batches, for which `ensure_space` was called.

        Raises:
            StorageFailedError: the store is closed or sealed.
        """
        self._check_writable()
        contents = self._contents
        before = contents.end
        fields = check_group(batches, epoch=self.epoch, offset=before.offset, digest=before.digest)
        size_bytes = contents.append(batches, fields)
        self._reserved_bytes -= size_bytes
        assert self._reserved_bytes >= 0, "ensure_space was not called"
        return AppendedGroup(before.offset, contents.end.offset, size_bytes)

    def sync(self) -> int:
        """Return the end offset: records in memory never become more durable.

        Raises:
            StorageFailedError: the store is closed or sealed.
        """
        self._check_writable()
        self.synced_offset = self._contents.end.offset
        return self.synced_offset

    def seal(self) -> None:
        """Take no more appends.

        Raises:
            StorageFailedError: the store is closed or sealed.
        """
        self.sync()
        self._contents.is_sealed = True
        self._contents.blocks[-1].is_growing = False
        self._give_back()

    def close(self, *, sync: bool = True) -> None:
        """Close the store; the contents stay until the directory is removed or the process ends."""
        del sync
        self._give_back()
        self._guard.give_up("the store is closed")

    # ------------------------------------------------------------------------------------ changes of the end

    def truncate(self, end_offset: int) -> None:
        """Truncate the store at a batch boundary, and make it appendable again. Ends LIMBO, sealing and repair.

        A sealed store that ends at `end_offset` stays sealed.

        Raises:
            DivergedError: no batch of this store ends at `end_offset`; nothing has changed.
            StorageFailedError: the store is closed, or the disk failed.
        """
        self._guard.check_open()
        digest = self.decided_digest(end_offset)
        contents, before_bytes = self._contents, self._contents.size_bytes
        if end_offset != contents.end.offset or (contents.damage is not None and not self.is_repairing):
            contents.cut(end_offset, digest)
            contents.is_sealed = False
            self._memory.release(self.topic_id, before_bytes - contents.size_bytes)
        self.synced_offset = end_offset
        self._end_repair()

    def truncate_to_valid_prefix(self) -> None:
        """Take appends of missing records, while the store stays in LIMBO.

        Raises:
            DiskFullError: no space for the repair marker; nothing has changed.
            StorageFailedError: the store is closed, or the disk failed.
        """
        self._guard.check_open()
        assert self._contents.damage is not None, "there is no damage"
        if self.is_repairing:
            return
        self._guard.begin_repair()
        self._contents.is_sealed = False
        self.is_repairing = True

    def finish_repair(self) -> None:
        """End LIMBO. Call it only if nothing is missing, or if an operator gives the missing records up.

        Raises:
            StorageFailedError: the store is closed, or the disk failed.
        """
        assert self.is_repairing, "nothing is missing"
        self.sync()
        self._end_repair()

    def sync_names(self) -> None:
        """Do nothing: the deletion of a block changes no files."""

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several blocks and return the bytes freed."""
        assert len(self._contents.blocks) > 1, "the newest block stays"
        freed_bytes = self._contents.delete_oldest()
        self._memory.release(self.topic_id, freed_bytes)
        return freed_bytes

    # --------------------------------------------------------------------------------- internals

    def _must_roll(self, needed_bytes: int) -> bool:
        """Return whether a group needs another block; a group larger than a block gets its own."""
        block = self._contents.blocks[-1]
        full_bytes = min(self.segment_bytes, BLOCK_BYTES)
        return block.size_bytes + needed_bytes > full_bytes and bool(block.batches)

    def _check_writable(self) -> None:
        contents = self._contents
        self._guard.check_sound(contents.damage, is_repairing=self.is_repairing)
        if contents.is_sealed:
            raise self._guard.sealed(contents.end.offset)

    def _end_repair(self) -> None:
        self._guard.end_repair()
        self._contents.damage, self.is_repairing = None, False

    def _give_back(self) -> None:
        self._memory.release(self.topic_id, self._reserved_bytes)
        self._reserved_bytes = 0
