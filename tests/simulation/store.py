"""The real log of one partition behind the core: its `LogView`, and the writes that the core orders.

What is damaged is dealt with before the core starts, as on a real node: a sealed epoch is set aside, to be fetched
again; the open one is cut in front of the damage and stays in doubt until the owner's log has been caught up with.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.core import effects as fx
from tidelog_broker.core.chain import EpochChain
from tidelog_broker.core.ports import PartitionKey, Position
from tidelog_broker.core.producers import ProducerTable
from tidelog_broker.core.replica_state import Doubt
from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.epoch_log import EpochLog
from tidelog_broker.storage.errors import DamagedError, DiskFullError, DivergedError, NotHeldError
from tidelog_broker.storage.log_start import load_log_start, save_log_start
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_broker.storage.segment import padded
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import Buffer, unpack_header

HOME = Path("/partitions")
SEGMENT_BYTES = 4096
SEGMENT_BYTES_SMALL = 512
"""Where retention is to have something to delete."""
READ_BYTES = 1500


class Store:
    """See the module; made by `open`."""

    def __init__(self, fs: SimDisk, log: PartitionLog, chain: EpochChain) -> None:
        self.log = log
        self.is_short = False
        """Whether the machine went down and took a part of the open epoch's copy with it."""
        self._fs = fs
        self._chain = chain
        self._flush: dict[int, pb.Flush] = {}

    @classmethod
    def open(cls, disk: SimDisk, key: PartitionKey, chain: EpochChain, *, segment_bytes: int = SEGMENT_BYTES) -> Store:
        """Open the log of a partition on a node's disk.

        Raises:
            StorageError: the disk failed.
        """
        if not disk.exists(HOME):
            disk.make_dir(HOME)
            disk.sync_dir(HOME.parent)
        log = PartitionLog.open(
            Disk(fs=disk), HOME, topic="simulated", topic_id=key[0], partition=key[1], segment_bytes=segment_bytes
        )
        store = cls(disk, log, chain)
        store._heal()
        store._go_on_filling()
        return store

    def _heal(self) -> None:
        """Set damaged sealed epochs aside; cut the open one in front of its damage."""
        active = self._chain.active.epoch
        while (epoch := self.log.unreadable_epoch) is not None:
            self.log.set_aside(epoch, "it cannot be opened")
        for log in reversed(self.log.epochs):
            if log.damage is not None and log.epoch < active:
                self.log.set_aside(log.epoch, log.damage.reason)
        if self.log.repairable_end(active) is not None:
            self.log.cut_to_good(active)

    def _go_on_filling(self) -> None:
        """Take up the copies that lie beside the log; those that are whole, and only waited for others, come in."""
        for epoch in self.log.fill_epochs:
            if self.log.fill_position(epoch) is None and epoch < self._chain.active.epoch:
                decision = pb.EpochDecision.FromString(self._chain.decisions[epoch - self._chain.genesis.epoch])
                end = (decision.end_offset, decision.end_digest)
                start_offset, log_start = self._descriptor(epoch).start_offset, self.log_start()
                if start_offset < end[0] <= log_start:
                    self.log.abandon_fill(epoch)
                    continue
                known = 0 if start_offset >= log_start else None
                with suppress(NotHeldError):
                    if self.log.begin_fill(epoch, max(start_offset, log_start), *end, start_digest=known) == end:
                        self.log.finish_fill(epoch)

    def _descriptor(self, epoch: int) -> pb.EpochDescriptor:
        if epoch == self._chain.genesis.epoch:
            return self._chain.genesis
        return pb.EpochDecision.FromString(self._chain.decisions[epoch - self._chain.genesis.epoch - 1]).next

    def owner_of(self, epoch: int) -> str:
        """Return who owns or owned an epoch."""
        return self._descriptor(epoch).owner

    def _synced(self, epoch: int) -> bool:
        flush = self._flush.get(epoch)
        if flush is None:
            flush = self._flush[epoch] = self._descriptor(epoch).flush or pb.ALWAYS
        return flush == pb.ALWAYS

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
    def repairing(self) -> bool:
        """Whether the open epoch lacks what it once held."""
        newest = self.log.active
        return newest is not None and newest.is_repairing

    def doubt(self, *, rebooted: bool) -> Doubt:
        """Return why the open epoch's copy is not to be trusted after a start.

        That the machine went down is noted durably: the process may be killed before it has caught up, and be started
        again on a machine that has not gone down since.
        """
        if self.repairing:
            return "damaged"
        note = self._short_note
        if rebooted and not self._synced(self._chain.active.epoch) and not self._fs.exists(note):
            self._fs.open(note, create=True).close()
            self._fs.sync_dir(HOME)
        self.is_short = self._fs.exists(note)
        return "short" if self.is_short else ""

    @property
    def _short_note(self) -> Path:
        return HOME / f"short-{self.log.name.partition}-{self._chain.active.epoch}"

    @property
    def in_doubt(self) -> bool:
        """Whether the core was told that the copy is not to be trusted."""
        return self.repairing or self.is_short

    def doubt_is_over(self) -> None:
        """The open epoch's copy has caught up, or its end is decided."""
        newest = self.log.active
        if newest is not None and newest.is_repairing:
            self.log.finish_repair(newest.epoch)
        if self.is_short:
            self.is_short = False
            if self._fs.exists(self._short_note):
                self._fs.unlink(self._short_note)
                self._fs.sync_dir(HOME)

    def limbo(self) -> str | None:
        """As the node's: an epoch that was set aside and is not replaced yet is merely missing."""
        log = self.log
        damaged = log.unreadable_epoch is not None or any(held.damage is not None for held in log.epochs)
        return log.limbo if damaged and not self.repairing else None

    def newest_epoch(self) -> int | None:
        return self.log.active.epoch if self.log.active is not None else None

    def _log_of(self, epoch: int) -> EpochLog | None:
        return next((log for log in self.log.epochs if log.epoch == epoch), None)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        log = self._log_of(epoch)
        return (log.end_offset, log.end_digest) if log is not None else None

    def digest_at(self, epoch: int, offset: int) -> int | None:
        try:
            return self.log.digest_at(epoch, offset)
        except DamagedError:
            return None

    def fill_position(self, epoch: int) -> tuple[int, int] | None:
        return self.log.fill_position(epoch)

    def log_start(self) -> int:
        return load_log_start(self._fs, self.log.directory)

    def delete_oldest(self, offset: int, bytes_max: int, committed: int) -> None:
        """Delete committed segments that end at or below `offset`, or until `bytes_max` are left."""
        while self.log.epochs and self.log.limbo is None:
            oldest = self.log.epochs[0]
            end_offset = oldest.oldest_end_offset
            is_last = len(self.log.epochs) == 1 and oldest.segment_count == 1
            if (
                is_last
                or end_offset > committed
                or not (end_offset <= offset or (bytes_max and self.log.size_bytes > bytes_max))
            ):
                return
            save_log_start(self._fs, self.log.directory, end_offset)
            self.log.delete_before(end_offset)

    # ------------------------------------------------------------------------------------------ reading

    def read_epoch(
        self, epoch: int, from_offset: int, end_offset: int, bytes_max: int
    ) -> tuple[Sequence[memoryview], Position, Position]:
        """Read whole batches of an epoch, for another node; nothing when they are not here."""
        nothing = Position(from_offset, 0)
        log = self._log_of(epoch)
        if log is None or not log.start_offset <= from_offset < log.end_offset:
            return [], nothing, nothing
        base = self.digest_at(epoch, from_offset)
        if base is None:
            return [], nothing, nothing
        try:
            found = log.read(from_offset, bytes_max, limit_offset=end_offset)
        except DamagedError:
            return [], nothing, nothing
        end = self.digest_at(epoch, found.next_offset)
        if end is None:
            return [], nothing, nothing
        return found.batches, Position(from_offset, base), Position(found.next_offset, end)

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
        table, timestamp_us = ProducerTable(), 0
        start_offset = self.log.start_offset
        if offset > 0 and (start_offset > log_start or not self.log.epochs or self.log.end_offset < offset):
            return None, 0
        try:
            for header in self.log.scan_headers(start_offset) if offset > start_offset else ():
                if header.end_offset > offset:
                    break
                table.apply(header)
                timestamp_us = header.append_timestamp_us
        except ProtocolError:
            return None, 0  # it has rotted; another node can tell
        return table, timestamp_us

    # ------------------------------------------------------------------------------------------ writing

    def perform(self, group: Sequence[fx.Write]) -> list[bool]:
        """Do one write, or several appends as one; return for each whether it was done (or found no space).

        Raises:
            StorageError: the disk failed, for good.
        """
        first = group[0]
        if isinstance(first, fx.Append):
            return [self._append(first, group)] * len(group)
        assert len(group) == 1
        try:
            return [self._one(first)]
        except DiskFullError:
            assert isinstance(first, fx.AppendFill), f"{type(first).__name__} needs no space"
            return [False]

    def _append(self, first: fx.Append, group: Sequence[fx.Write]) -> bool:
        batches: list[Buffer] = [batch for one in group if isinstance(one, fx.Append) for batch in one.batches]
        newest = self.log.active
        end_offset = newest.end_offset if newest is not None and newest.epoch == first.epoch else first.start_offset
        if end_offset != first.base_offset:
            return False
        try:
            if newest is not None and newest.epoch == first.epoch and newest.is_repairing:
                self.log.append_repair(first.epoch, batches)
                return True
            if newest is None or newest.epoch != first.epoch:
                self.log.start_epoch(first.epoch, first.start_offset)
            self.log.reserve(sum(padded(len(batch)) for batch in batches))
        except DiskFullError:
            return False
        self.log.append(batches)
        if self._synced(first.epoch):
            self.log.sync()
        return True

    def _one(self, effect: fx.Write) -> bool:
        if isinstance(effect, fx.Truncate):
            self.log.truncate_epoch(effect.epoch, effect.end_offset)
        elif isinstance(effect, fx.AppendFill):
            return self._fill(effect)
        elif isinstance(effect, fx.FinishFill):
            if self.log.fill_position(effect.epoch) is None:
                return False  # retention has ended it
            self.log.finish_fill(effect.epoch)
            self._note_log_start(effect.epoch)
            self._go_on_filling()
        else:
            assert isinstance(effect, fx.SetAside)
            if self._log_of(effect.epoch) is not None or effect.epoch in self.log.fill_epochs:
                self.log.set_aside(effect.epoch, effect.reason)
        return True

    def _note_log_start(self, epoch: int) -> None:
        """A copy that begins late shows where the log starts."""
        log = self._log_of(epoch)
        if log is not None and log.start_offset > max(self._descriptor(epoch).start_offset, self.log_start()):
            save_log_start(self._fs, self.log.directory, log.start_offset)

    def _fill(self, effect: fx.AppendFill) -> bool:
        end = (effect.epoch_end_offset, effect.epoch_end_digest)
        try:
            position = self.log.begin_fill(effect.epoch, effect.start_offset, *end, start_digest=effect.start_digest)
        except NotHeldError:
            return False  # what was to be gone on with is gone
        assert position.offset >= effect.base_offset, f"a fill at {position}, {effect.base_offset} comes"
        missing = [batch for batch in effect.batches if unpack_header(batch).base_offset >= position.offset]
        with suppress(DivergedError):  # the core sees it, too, and orders the copy set aside
            self.log.append_fill(effect.epoch, missing)
        return True
