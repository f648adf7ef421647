"""Reads with a filter, on any replica: from memory for readers near the end, else from the log.

Batches are filtered on a reader thread. A read does a bounded amount of work and returns how far it got, so that a rare
filter does not block other readers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.partition.matching import MatchingReader, NewestMatch, ReadResult, RecordFilter, filter_all
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters.expression_messages import filter_of_message
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.limits import MIB, TAG_BYTES_MAX

T = TypeVar("T")

HOT_BYTES: Final = 1 * MIB
"""Maximum bytes in memory that are filtered without the index; beyond it the index is used, if the log has one."""


class FilteredReader:
    """Reads the committed records of one partition that match a filter. All methods are for the event loop's thread.

    Args:
        reader: reads all records of the partition.
    """

    def __init__(self, state: PartitionState, reader: PartitionReader, workers: Offload, io_key: int) -> None:
        self._state = state
        self._log = state.log
        self._reader = reader
        self._workers = workers
        self._io_key = io_key

    async def read(self, offset: int, bytes_max: int, record_filter: RecordFilter) -> ReadResult:
        """Read about `bytes_max` bytes of committed matching records from `offset` on.

        Raises:
            ProtocolError: as `PartitionReader.read_log`.
        """
        end = self._state.readable_until(offset)
        if offset >= end:
            return ReadResult([], offset)
        hot = self._reader.read_hot(offset, HOT_BYTES)
        is_indexed = record_filter.column(self._log.indexes.columns) is not None
        if hot and not (is_indexed and sum(len(entry.data) for entry in hot) >= HOT_BYTES):
            batches = [entry.data for entry in hot]
            return await self._call(partial(filter_all, batches, bytes_max, record_filter, self._log.layouts), offset)
        matching = (self._state.run_beside(offset) or self._log).matching
        read = partial(matching.read, offset, bytes_max, limit_offset=end, record_filter=record_filter)
        return await self._call(read, offset)

    async def find_newest(
        self, record_filter: RecordFilter, goes_on: Callable[[], bool], *, with_record: bool = False
    ) -> NewestMatch | None:
        """Find the newest committed matching record; None if no record matches, or once `goes_on` returns False.

        Args:
            with_record: whether the result contains the record.

        Raises:
            ProtocolError: as `PartitionReader.read_log`; also if an older epoch is still being fetched.
        """
        found: NewestMatch | None = None
        for matching, start_offset, end_offset in self._searched():
            limit = end_offset
            while found is None and goes_on() and limit > start_offset:
                search = partial(
                    matching.newest, limit_offset=limit, record_filter=record_filter, with_record=with_record
                )
                looked = await self._call(search, limit)
                if looked.offset is not None:
                    found = looked
                if looked.from_offset >= limit:
                    break
                limit = looked.from_offset
        if found is None and self._state.lacks_front:
            raise self._state.missing_here_error(self._state.log_start)
        history = self._state.replica.backfill
        awaited_below = history.awaited_below if history.lacks_any else 0
        if awaited_below and (found is None or found.from_offset < awaited_below):
            raise self._state.missing_here_error(
                self._state.log_start
            )  # A newer match may be among the records that are being fetched.
        return found

    def _searched(self) -> list[tuple[MatchingReader, int, int]]:
        """Return the readers of the log and of copies before lost epochs, newest first, each with its bounds."""
        log = self._log
        runs = reversed(log.detached.runs) if self._state.replica.backfill.lost_below else ()
        beside = [(run.matching, run.start_offset, run.end_offset) for run in runs]
        return [(log.matching, log.start_offset, self._state.readable_end), *beside]

    async def _call(self, look: Callable[[], T], offset: int) -> T:
        with self._state.reading(offset):
            return await self._workers.call_promptly(self._io_key, look)


def parse_record_filter(message: pb.RecordFilter) -> RecordFilter | None:
    """Parse a filter; None if it matches everything.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    key = message.key if message.HasField("key") else None
    tag = message.tag if message.HasField("tag") else None
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a tag must have at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}"
        )
    try:
        where = filter_of_message(message.where) if message.HasField("where") else None
    except FilterError as error:
        raise ProtocolError(pb.INVALID_REQUEST, str(error)) from None
    found = RecordFilter(key, tag, where)
    return None if found == RecordFilter() else found


def indexed_columns(config: pb.TopicConfig) -> frozenset[TextColumn]:
    """Return the indexed columns of a topic."""
    columns: list[tuple[TextColumn, bool]] = [("key", config.index_key), ("tag", config.index_tag)]
    return frozenset(column for column, is_indexed in columns if is_indexed)
