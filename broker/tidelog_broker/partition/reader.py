"""Reads of a partition, on its owner and on other replicas: up to the known high watermark.

A reader beyond the watermark waits. Before an offset is refused as beyond the end, `Access.ensure_given_out` asks a
quorum, because another node may have committed records there. Records below this copy's start are on another replica,
or retention has deleted them everywhere.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.hot_ring import HotRing, RingEntry
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches


class PartitionReader:
    """Reads committed records of one partition, from memory or from the log.

    All methods are for the event loop's thread.

    Args:
        ring: the partition's newest batches, in memory.
    """

    def __init__(self, state: PartitionState, ring: HotRing, workers: Offload, io_key: int) -> None:
        self._state = state
        self._replica = state.replica
        self._log = state.log
        self._ring = ring
        self._workers = workers
        self._io_key = io_key

    def check_offset(self, offset: int) -> None:
        """Refuse an offset whose record is deleted, lost, missing in this copy, or, at a single copy, beyond the end.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds, or where to continue if the record is lost; NOT_OWNER,
                EPOCH_CHANGING while it is being fetched, LIMBO if the only copy cannot be opened.
        """
        if not self.is_deleted(offset) and self._state.resume_offset(offset) > offset:
            raise self._state.lost_error(offset)
        self.check_held(offset)

    def check_held(self, offset: int) -> None:
        """Check an offset as `check_offset` does, but accept the offsets of lost records.

        Raises:
            ProtocolError: as `check_offset`.
        """
        log = self._log
        if self._state.is_alone and offset >= log.end_offset and (log.needs_engine or log.unreadable_epoch is not None):
            raise log.unreadable_error(offset)  # How far the only copy reaches is unknown.
        owner = self._replica.state.owner
        end = (owner.next_offset if owner is not None else self._state.high_watermark) if self._state.is_alone else None
        if self.is_deleted(offset) or (end is not None and offset > end):
            raise self._state.out_of_range(offset)
        if self._state.run_beside(offset) is not None:
            return
        if self._is_missing(offset) or (offset < self._log.start_offset and not self._state.is_alone):
            raise self._state.missing_here_error(offset)

    def is_deleted(self, offset: int) -> bool:
        """Return whether the record at an offset is deleted, even if it is still in memory or in the log."""
        return offset < self._state.log_start

    def _is_missing(self, offset: int) -> bool:
        """Return whether the record at an offset is in an epoch that is still being fetched."""
        backfill = self._replica.backfill
        if not backfill.lacks_any:
            return False
        is_here = max(self._log.start_offset, backfill.outdated_below) <= offset < self._log.end_offset
        return not is_here and offset < backfill.complete_from

    def read_hot(self, offset: int, bytes_max: int, records_max: int | None = None) -> list[RingEntry] | None:
        """Return committed batches from memory, possibly an empty list; None if `offset` is before the ring."""
        end = self._state.readable_until(offset)
        if offset >= end:
            return []
        found = self._ring.read(offset, bytes_max, records_max)
        while found and found[-1].end_offset > end:
            found.pop()
        return found

    async def read_log(self, offset: int, bytes_max: int) -> list[memoryview]:
        """Read about `bytes_max` bytes of committed batches, at least one if there is any; raises as `read_to_send`."""
        return (await self._read(offset, bytes_max, to_send=False)).batches

    async def read_to_send(self, offset: int, bytes_max: int, *, is_prompt: bool) -> FoundBatches:
        """Read as `read_log`, for a client.

        Args:
            is_prompt: whether the client reads its replies at once. The batches may then be slices of the log, which
                only system calls may read: with a slow client, they would keep deleted files on the disk.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE if retention has deleted the records meanwhile, STORAGE_FAILED if the
                disk fails, LIMBO if the log is damaged, NOT_OWNER if another replica has the records, EPOCH_CHANGING
                while they are being fetched.
        """
        return await self._read(offset, bytes_max, to_send=is_prompt)

    async def _read(self, offset: int, bytes_max: int, *, to_send: bool) -> FoundBatches:
        limit = self._state.readable_until(offset)
        if offset >= limit:
            return FoundBatches([], [], offset)
        beside = self._state.run_beside(offset)
        read = (beside or self._log).reader.read
        with self._state.reading(offset):
            return await self._workers.call(self._io_key, read, offset, bytes_max, limit_offset=limit, to_send=to_send)

    async def find_by_time(self, timestamp_us: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first committed record of at least that timestamp; None if all are older.

        Raises:
            ProtocolError: as `read_log`.
        """
        start_offset, limit = self._state.log_start, self._state.readable_end
        if self._state.lacks_front:
            raise self._state.missing_here_error(start_offset)  # A lost record may be the first match.
        with self._state.reading(start_offset):
            for run in self._log.detached.runs if self._replica.backfill.lost_below else ():
                older = await self._workers.call(
                    self._io_key, _first_record, run.reader, timestamp_us, start_offset, run.end_offset
                )
                if older.record is not None and not self._replica.backfill.awaited_below:
                    return older.record
            found = await self._workers.call(
                self._io_key, _first_record, self._log.reader, timestamp_us, start_offset, limit
            )
        awaited_below = self._replica.backfill.awaited_below if self._replica.backfill.lacks_any else 0
        if awaited_below and (found.batch_offset is None or found.batch_offset <= awaited_below):
            raise self._state.missing_here_error(self._state.log_start)  # An earlier record may be the first match.
        return found.record


class _TimeLookup(NamedTuple):
    """The batch at which a lookup by time started, and the offset and timestamp of the record that it found."""

    batch_offset: int | None
    record: tuple[int, int] | None


def _stamps(batch: RecordBatch) -> Any:
    """Return the timestamps of a batch as an array of int64."""
    if not batch.header.flags & Flags.TIMESTAMP:
        return np.full(len(batch), batch.header.base_timestamp_us)
    stamps: Any = batch.columns().column("timestamp")
    return stamps.view(pa.int64()).to_numpy(zero_copy_only=False)


def _first_record(log: PartitionLogReader, timestamp_us: int, start_offset: int, limit_offset: int) -> _TimeLookup:
    """Find the first record in the offset range whose timestamp is at least `timestamp_us`.

    Call it on a reader thread: it reads and decodes batches.

    Raises:
        ProtocolError, StorageError: as `PartitionLogReader.read`.
    """
    first = offset = log.find_by_time(timestamp_us, start_offset)
    while offset is not None and offset < limit_offset:
        read = log.read(offset, 1, limit_offset=limit_offset, to_send=False)
        if not read.batches:
            break
        for view in chain.from_iterable(map(iter_batches, read.batches)):
            batch = RecordBatch.parse(view, log.layouts)
            stamps = _stamps(batch)
            for row in np.flatnonzero(stamps >= timestamp_us):
                record_offset = batch.offset_list()[int(row)]
                if record_offset >= start_offset:
                    return _TimeLookup(first, (record_offset, int(stamps[row])))
            offset = batch.end_offset
    return _TimeLookup(first, None)
