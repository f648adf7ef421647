"""A log in memory for the explorer: the core's view of a disk on which every write is complete or missing."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_broker.core.replication import effects as fx
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto.batch.header import unpack_header


class Stored(NamedTuple):
    """A batch in a log."""

    base: Position
    end: Position
    data: bytes


class SmallLog:
    """Epoch -> its batches, and the same for copies that are being filled. A `LogView`."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Stored]] = {}
        self.starts: dict[int, int] = {}
        self.fills: dict[int, list[Stored]] = {}

    def perform(self, effect: fx.Write) -> None:
        """Do a write to the log."""
        if isinstance(effect, fx.Append):
            self._add(self.epochs, effect)
        elif isinstance(effect, fx.AppendPartialCopy):
            self._add(self.fills, effect)
        elif isinstance(effect, fx.Truncate):
            stored = self.epochs.get(effect.epoch, [])
            self.epochs[effect.epoch] = [one for one in stored if one.end.offset <= effect.end_offset]
        elif isinstance(effect, fx.FinishPartialCopy):
            self.epochs[effect.epoch] = self.fills.pop(effect.epoch)
        elif isinstance(effect, fx.SetAside):
            self.fills.pop(effect.epoch, None)
            self.epochs.pop(effect.epoch, None)

    def _add(self, where: dict[int, list[Stored]], effect: fx.Append | fx.AppendPartialCopy) -> None:
        stored = where.setdefault(effect.epoch, [])
        self.starts[effect.epoch] = effect.start_offset
        end = stored[-1].end if stored else Position(effect.start_offset, 0)
        assert end.offset == effect.base_offset, f"{effect} at {end}"
        for batch in effect.batches:
            header = unpack_header(batch)
            stored.append(Stored(end, Position(header.end_offset, header.digest), bytes(batch)))
            end = stored[-1].end

    def limbo(self) -> str | None:
        return None

    def newest_epoch(self) -> int | None:
        return max(self.epochs, default=None)

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        stored = self.epochs.get(epoch)
        if stored is None:
            return None
        return stored[-1].end if stored else (self.starts[epoch], 0)

    def copy_start(self, epoch: int) -> int | None:
        return self.starts[epoch] if epoch in self.epochs else None

    def digest_at(self, epoch: int, offset: int) -> int | None:
        if epoch not in self.epochs:
            return None
        if offset == self.starts[epoch]:
            return 0
        return next((one.end.digest for one in self.epochs[epoch] if one.end.offset == offset), None)

    def batch_start(self, epoch: int, offset: int) -> int | None:
        if epoch not in self.epochs:
            return None
        starts = [self.starts[epoch], *(one.end.offset for one in self.epochs[epoch])]
        return max((start for start in starts[:-1] if start <= offset < starts[-1]), default=None)

    def copy_position(self, epoch: int) -> tuple[int, int] | None:
        stored = self.fills.get(epoch)
        return stored[-1].end if stored else None

    def position_beside(self, epoch: int) -> tuple[int, int] | None:
        return self.copy_position(epoch)

    def raise_log_start(self, offset: int) -> None:
        """Nothing is kept by that here."""

    def log_start(self) -> int:
        return 0

    def is_volatile(self, epoch: int) -> bool:
        return False

    def epoch_without_producers(self) -> int | None:
        return None

    def read(self, ask: fx.ReadLog) -> tuple[list[memoryview], Position, Position]:
        """Answer a `ReadLog`, one batch at a time."""
        for one in self.epochs.get(ask.epoch, []):
            if one.base.offset == ask.from_offset and one.end.offset <= ask.end_offset:
                return [memoryview(one.data)], one.base, one.end
        return [], Position(ask.from_offset, 0), Position(ask.from_offset, 0)

    def producers(self, epoch: int, offset: int) -> ProducerTable | None:
        """Return the producers' state at an offset, if everything before it is here."""
        table, at = ProducerTable(), 0
        for number in range(epoch + 1):
            for one in self.epochs.get(number, []):
                if at == one.base.offset and one.end.offset <= offset:
                    table.apply(unpack_header(one.data))
                    at = one.end.offset
        return table if at == offset else None
