"""Reading a partition's log across epochs, on any thread: batches, digests, times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot, load_snapshots
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX

R = TypeVar("R")


class PartitionLogReader:
    """Reads a partition's log across its epochs, on any thread."""

    def __init__(self, held: HeldEpochs) -> None:
        self._held = held

    @property
    def layouts(self) -> Layouts | None:
        """See `HeldEpochs.layouts`."""
        return self._held.layouts

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, to_send: bool = False) -> FoundBatches:
        """Read whole batches across epochs; otherwise as `EpochReading.read`.

        Raises:
            NotHeldError: `offset` is before this node's copy of the log, but was not deleted by retention.
        """
        return retry_if_replaced(self._held, lambda: self._read(offset, max_bytes, limit_offset, to_send=to_send))

    def _read(self, offset: int, max_bytes: int, limit_offset: int, *, to_send: bool) -> FoundBatches:
        epochs = self._held.epochs
        check_offset(self._held, offset)
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        heads: list[memoryview] = []
        position = offset
        for number, log in enumerate(epochs):
            if log.end_offset <= position and log is not epochs[-1] and log.damage is None:
                continue
            if position >= limit_offset:
                break
            found = log.reader.read(
                position, left_bytes, limit_offset=limit_offset, at_least_one=not batches, to_send=to_send
            )
            batches += found.batches
            heads += found.heads
            position = found.next_offset
            left_bytes -= sum(map(len, found.batches))
            following = epochs[number + 1] if number + 1 < len(epochs) else None
            if left_bytes <= 0 or following is None or position < following.start_offset:
                break
        if not batches and position < limit_offset and self._held.limbo is not None:
            raise self._held.unreadable_error(position)
        return FoundBatches(batches, heads, position)

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None if no batch has one.

        Only batches that end after `from_offset` count; the returned one may begin before it.
        """

        def find() -> int | None:
            found = (
                log.reader.find_by_time(timestamp_us, from_offset)
                for log in self._held.epochs
                if not log.end_offset <= from_offset < self._held.end_offset
            )
            return next((offset for offset in found if offset is not None), None)

        return retry_if_replaced(self._held, find)

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""
        for log in self._held.epochs:
            if log.end_offset > from_offset:
                yield from log.reader.scan_headers(max(from_offset, log.start_offset))

    def load_producer_snapshots(self) -> Iterator[ProducerSnapshot]:
        """Yield the valid snapshots, newest first; their offsets may be outside the log."""
        return load_snapshots(self._held.disk.fs, self._held.directory) if self._held.epochs else iter(())

    def digest_at(self, epoch: int, offset: int) -> int | None:
        """See `EpochReading.digest_at`; None also for an epoch without a complete copy."""
        log = self._held.copy_of(epoch)
        return log.reader.digest_at(offset) if log is not None else None

    def batch_start(self, epoch: int, offset: int) -> int | None:
        """See `EpochReading.batch_start`; None also for an epoch without a complete copy."""
        log = self._held.copy_of(epoch)
        return log.reader.batch_start(offset) if log is not None else None


def retry_if_replaced(held: HeldEpochs, read: Callable[[], R]) -> R:
    """Return the result of `read`; call `read` again if it finds no such offset because the epochs have changed.

    Raises:
        ProtocolError: OFFSET_OUT_OF_RANGE although nothing was replaced, or another error of `read`.
    """
    while True:
        epochs = held.epochs
        try:
            return read()
        except ProtocolError as error:
            if error.code != pb.OFFSET_OUT_OF_RANGE or held.epochs is epochs:
                raise


def check_offset(held: HeldEpochs, offset: int) -> None:
    """Refuse an offset that is not in the log.

    Raises:
        ProtocolError: OFFSET_OUT_OF_RANGE.
        NotHeldError: the offset is before this node's copy of the log, but was not deleted by retention.
    """
    epochs, name = held.epochs, f"{held.name.topic}/{held.name.partition}"
    if epochs and held.gone_below <= offset < epochs[0].start_offset:
        raise NotHeldError(
            f"{name}: offset {offset} is not in this node's copy, which begins at {epochs[0].start_offset}; read it "
            "from another replica"
        )
    if not held.start_offset <= offset <= held.end_offset and held.limbo is None:
        raise ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"{name}: offset {offset} is out of range; offsets {held.start_offset} to {held.end_offset} can be read",
            log_start_offset=held.start_offset,
            high_watermark=held.end_offset,
        )
