"""The log of one partition on a simulated disk: the node's own view of it, its own writes, and a few looks for checks.

Healing, doubt, reading, filling and appending are the shipped code (`log_view`, `log_writes`); only what the node does
with an event loop and I/O workers is the world's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker import log_writes
from tidelog_broker.core import effects as fx
from tidelog_broker.core.chain import EpochChain
from tidelog_broker.core.ports import PartitionKey, Position
from tidelog_broker.core.producers import ProducerTable
from tidelog_broker.core.replica_state import Doubt
from tidelog_broker.log_view import LogView
from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.errors import DamagedError
from tidelog_broker.storage.log_start import load_log_start, raise_log_start
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_proto.errors import ProtocolError

HOME = Path("/partitions")
SEGMENT_BYTES = 4096
SEGMENT_BYTES_SMALL = 512
"""Where retention is to have something to delete."""
READ_BYTES = 1500


class Store:
    """See the module; made by `open`."""

    def __init__(self, fs: SimDisk, view: LogView) -> None:
        self.log = view.store
        self.view = view
        self._fs = fs

    @classmethod
    def open(
        cls,
        disk: SimDisk,
        key: PartitionKey,
        chain: EpochChain,
        *,
        node_id: str,
        rebooted: bool,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Store:
        """Open the log of a partition on a node's disk, as the node does.

        Raises:
            StorageError: the disk failed.
        """
        if not disk.exists(HOME):
            disk.make_dir(HOME)
            disk.sync_dir(HOME.parent)
        log = PartitionLog.open(
            Disk(fs=disk), HOME, topic="simulated", topic_id=key[0], partition=key[1], segment_bytes=segment_bytes
        )
        log_start = load_log_start(disk, log.directory)
        return cls(disk, LogView.open(log, chain, node_id=node_id, log_start=log_start, rebooted=rebooted))

    # ------------------------------------------------------------------------------------------ what it is

    @property
    def start_offset(self) -> int:
        """The first offset of the log."""
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last record of the log."""
        return self.log.end_offset

    @property
    def doubt(self) -> Doubt:
        """Why the open epoch's copy is not to be trusted."""
        return self.view.doubt

    def doubt_is_over(self) -> None:
        """The open epoch's copy has caught up, or its end is decided."""
        self.view.end_doubt()

    def limbo(self) -> str | None:
        """Why the log is damaged now; None when it is not, or only lacks what is being fetched."""
        log = self.log
        damaged = log.unreadable_epoch is not None or any(held.damage is not None for held in log.epochs)
        return log.limbo if damaged and not self.view.repairing else None

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """End offset and digest of the copy of an epoch; None when there is none in the log."""
        return self.view.epoch_end(epoch)

    def fill_position(self, epoch: int) -> tuple[int, int] | None:
        """How far the copy of an epoch reaches."""
        return self.view.fill_position(epoch)

    def owner_of(self, epoch: int) -> str:
        """Return who owns or owned an epoch."""
        return self.view.descriptor(epoch).owner

    def delete_oldest(self, offset: int, bytes_max: int, committed: int) -> None:
        """Delete committed segments that end at or below `offset`, or until `bytes_max` are left."""
        below = self.log.outdated(below=offset, bytes_max=bytes_max, committed=committed)
        if below:
            self.log.settle()
            raise_log_start(self._fs, self.log.directory, below)
            self.log.delete_before(below)

    # ------------------------------------------------------------------------------------------ reading

    def read_epoch(self, effect: fx.ReadLog) -> tuple[Sequence[memoryview], Position, Position]:
        """Read whole batches of an epoch, for another node; nothing when they are not here."""
        try:
            found = self.view.read_epoch(effect)
        except DamagedError:
            nothing = Position(effect.from_offset, 0)
            return [], nothing, nothing
        return found.batches, found.base, found.end

    def read_committed(self, offset: int, high_watermark: int) -> Sequence[memoryview]:
        """Read for a consumer; nothing when it is not here."""
        if not self.log.start_offset <= offset < min(high_watermark, self.log.end_offset):
            return []
        try:
            return self.log.read(offset, READ_BYTES, limit_offset=high_watermark).batches
        except ProtocolError:
            return []

    def all_batches(self) -> list[bytes]:
        """Read everything."""
        found: list[bytes] = []
        offset = self.log.start_offset
        while offset < self.log.end_offset:
            result = self.log.read(offset, 1 << 20, limit_offset=self.log.end_offset)
            found += [bytes(batch) for batch in result.batches]
            offset = result.next_offset
        return found

    def rebuild_producers(self, offset: int, log_start: int) -> tuple[ProducerTable | None, int]:
        """Return the producers' state at an offset and the last append timestamp before it; None if it is not here."""
        return self.view.producers_at(offset, log_start=log_start)

    # ------------------------------------------------------------------------------------------ writing

    def sync_ahead(self, effect: fx.SyncAhead) -> bool:
        """Have the disk take what the newest epoch holds, beside the writes. True: nothing of it is refused.

        Raises:
            StorageError: the disk failed, for good.
        """
        self.view.sync_ahead(effect.epoch, effect.slack_bytes)
        return True

    def perform(self, group: Sequence[fx.Write]) -> list[bool]:
        """Do one write, or several appends as one; return for each whether it was done (or found no space).

        Raises:
            StorageError: the disk failed, for good.
        """
        first = group[0]
        if isinstance(first, fx.Append):
            appends = [one for one in group if isinstance(one, fx.Append)]
            return [log_writes.append(self.view, appends, synced=self.view.synced(first.epoch))] * len(group)
        assert len(group) == 1
        assert not isinstance(first, fx.WriteFences | fx.WriteChain)
        return [log_writes.perform(self.view, first)]
