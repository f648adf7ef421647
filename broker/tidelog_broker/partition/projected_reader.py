"""Reads of some columns or a time range, on any replica: from memory for readers near the end, else from the log.

Batches are reduced on a reader thread: the result needs a new CRC, which would block the event loop for large batches.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.partition.matching import ReadResult
from tidelog_broker.storage.partition.projecting import project_all
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS, OFFSET_MAX
from tidelog_proto.batch.projection import WHOLE_BYTES_MAX, Projection
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, SCHEMA_LEAVES_MAX

SMALL_BATCH_BYTES: Final = HEADER_BYTES + WHOLE_BYTES_MAX
"""Maximum size of a batch that is sent whole to a reader of some fields."""


class ProjectedReader:
    """Reads some columns, or a time range, of one partition. All methods are for the event loop's thread.

    Args:
        reader: reads all records of the partition.
    """

    def __init__(self, state: PartitionState, reader: PartitionReader, workers: Offload, io_key: int) -> None:
        self._state = state
        self._log = state.log
        self._reader = reader
        self._workers = workers
        self._io_key = io_key

    async def read(self, offset: int, bytes_max: int, projection: Projection, *, is_prompt: bool) -> ReadResult:
        """Read committed records from `offset` on, about `bytes_max` bytes as stored.

        Args:
            is_prompt: see `PartitionReader.read_to_send`.

        Raises:
            ProtocolError: as `PartitionReader.read_log`.
        """
        end = self._state.readable_until(offset)
        if offset >= end:
            return ReadResult([], offset)
        hot = self._reader.read_hot(offset, bytes_max)
        with self._state.reading(offset):
            if hot:
                wanted = [hot[0], *(entry for entry in hot[1:] if entry.base_offset < projection.end_offset)]
                return await self.of(ReadResult([entry.data for entry in wanted], wanted[-1].end_offset), projection)
            read = partial(
                (self._state.run_beside(offset) or self._log).projecting.read,
                offset,
                bytes_max,
                limit_offset=end,
                projection=projection,
                to_send=is_prompt,
            )
            return await self._workers.call(self._io_key, read)

    async def of(self, found: ReadResult, projection: Projection) -> ReadResult:
        """Reduce batches in memory to the columns and records of a projection.

        Small batches are sent whole to readers of some fields, without waiting for a thread.

        Raises:
            ProtocolError: as `project_all`.
        """
        if not found.batches:
            return found
        if projection.fields is not None and all(len(each) <= SMALL_BATCH_BYTES for each in found.batches):
            return found
        batches = await self._workers.call(self._io_key, project_all, found.batches, projection, self._log.layouts)
        return ReadResult(batches, found.next_offset)


def projection_of(message: pb.Projection) -> Projection:
    """Parse a projection; unknown columns and fields are ignored.

    Raises:
        ProtocolError: INVALID_REQUEST for too many fields.
    """
    fields = None
    if message.HasField("fields"):
        ids = message.fields.ids
        if len(ids) > SCHEMA_LEAVES_MAX:
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"a projection may name at most {SCHEMA_LEAVES_MAX} fields, got {len(ids)}; name structs instead of "
                "the fields below them, or request all fields",
            )
        fields = frozenset(ids)
    return Projection(
        message.columns & COLUMN_FLAGS,
        message.from_us if message.HasField("from_us") else None,
        message.until_us if message.HasField("until_us") else None,
        min(message.end_offset, OFFSET_MAX) if message.HasField("end_offset") else OFFSET_MAX,
        fields,
    )
