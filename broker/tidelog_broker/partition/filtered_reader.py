"""Reading what matches a filter, on any replica: out of memory where a reader is close, else out of the log.

Batches are cut down on a reader thread. A read does a bounded amount of work and says how far it got, so that what a
reader asks for costs others a turn, however little of it there is to be found.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from tidelog_broker.base.offload import Offload
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.partition.matching import Newest, ReadResult, Wanted, filter_all
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB, TAG_BYTES_MAX

T = TypeVar("T")

HOT_BYTES: Final = 1 * MIB
"""How much of the newest batches is looked through at once; where there is more and an index, that is asked."""


class FilteredReader:
    """See the module. All methods are for the event loop's thread.

    Args:
        state: what is known of the partition.
        reader: of all its records.
        workers, io_key: for looking through batches.
    """

    def __init__(self, state: PartitionState, reader: PartitionReader, workers: Offload, io_key: int) -> None:
        self._state = state
        self._log = state.log
        self._reader = reader
        self._workers = workers
        self._io_key = io_key

    async def read(self, offset: int, bytes_max: int, wanted: Wanted) -> ReadResult:
        """Read committed records that match from `offset` on, about `bytes_max` bytes of them.

        Raises:
            ProtocolError: as `PartitionReader.read_log`.
        """
        end = self._state.readable_end
        if offset >= end:
            return ReadResult([], offset)
        hot = self._reader.read_hot(offset, HOT_BYTES)
        is_indexed = wanted.column(self._log.indexes.columns) is not None
        if hot and not (is_indexed and sum(len(entry.data) for entry in hot) >= HOT_BYTES):
            batches = [entry.data for entry in hot]
            return await self._call(partial(filter_all, batches, bytes_max, wanted), offset)
        read = partial(self._log.matching.read, offset, bytes_max, limit_offset=end, wanted=wanted)
        return await self._call(read, offset)

    async def find_newest(self, wanted: Wanted, goes_on: Callable[[], bool]) -> Newest | None:
        """Find the newest committed record that matches; None without one, or when it is not to go on any more.

        Raises:
            ProtocolError: as `PartitionReader.read_log`; also where an older record may be on its way here.
        """
        limit = self._state.readable_end
        found: Newest | None = None
        while goes_on() and limit > self._log.start_offset:
            looked = await self._call(partial(self._log.matching.newest, limit_offset=limit, wanted=wanted), limit)
            if looked.offset is not None:
                found = looked
                break
            if looked.from_offset >= limit:
                break
            limit = looked.from_offset
        history = self._state.replica.backfill
        if history.incomplete and (found is None or found.from_offset < history.whole_from):
            raise self._state.not_here(self._state.log_start)  # a newer one may be on its way
        return found

    async def _call(self, look: Callable[[], T], offset: int) -> T:
        with self._state.reading(offset):
            return await self._workers.call(self._io_key, look)


def wanted_of(message: pb.RecordFilter) -> Wanted | None:
    """Return what a filter asks for; None for everything.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    key = message.key if message.HasField("key") else None
    tag = message.tag if message.HasField("tag") else None
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"a tag of {len(tag.encode())} bytes; it has at most {TAG_BYTES_MAX}")
    return Wanted(key, tag) if (key, tag) != (None, None) else None


def indexed_columns(config: pb.TopicConfig) -> frozenset[TextColumn]:
    """Return the columns of a topic that have an index."""
    columns: list[tuple[TextColumn, bool]] = [("key", config.index_key), ("tag", config.index_tag)]
    return frozenset(column for column, is_indexed in columns if is_indexed)
