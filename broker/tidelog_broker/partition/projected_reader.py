"""Reading some columns, or what is of a time, on any replica: out of memory where a reader is close, else from the log.

Batches are cut on a reader thread: a CRC is made of what is left, and large ones would hold up the event loop.
"""

from __future__ import annotations

from functools import partial

from tidelog_broker.base.offload import Offload
from tidelog_broker.partition.reader import PartitionReader
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.partition.matching import ReadResult
from tidelog_broker.storage.partition.projecting import project_all
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS, OFFSET_MAX
from tidelog_proto.batch.projection import Projection


class ProjectedReader:
    """See the module. All methods are for the event loop's thread.

    Args:
        state: what is known of the partition.
        reader: of all its records.
        workers, io_key: for cutting batches.
    """

    def __init__(self, state: PartitionState, reader: PartitionReader, workers: Offload, io_key: int) -> None:
        self._state = state
        self._log = state.log
        self._reader = reader
        self._workers = workers
        self._io_key = io_key

    async def read(self, offset: int, bytes_max: int, projection: Projection, *, is_prompt: bool) -> ReadResult:
        """Read committed records from `offset` on, about `bytes_max` bytes as they are stored.

        What a client `is_prompt` to take may be slices of the log, as of `PartitionReader.read_to_send`.

        Raises:
            ProtocolError: as `PartitionReader.read_log`.
        """
        end = self._state.readable_end
        if offset >= end:
            return ReadResult([], offset)
        hot = self._reader.read_hot(offset, bytes_max)
        with self._state.reading(offset):
            if hot:
                wanted = [hot[0], *(entry for entry in hot[1:] if entry.base_offset < projection.end_offset)]
                return await self.of(ReadResult([entry.data for entry in wanted], wanted[-1].end_offset), projection)
            read = partial(
                self._log.projecting.read,
                offset,
                bytes_max,
                limit_offset=end,
                projection=projection,
                to_send=is_prompt,
            )
            return await self._workers.call(self._io_key, read)

    async def of(self, found: ReadResult, projection: Projection) -> ReadResult:
        """Return what is wanted of batches in memory.

        Raises:
            ProtocolError: CORRUPT_BATCH.
        """
        if not found.batches:
            return found
        batches = await self._workers.call(self._io_key, project_all, found.batches, projection)
        return ReadResult(batches, found.next_offset)


def projection_of(message: pb.Projection) -> Projection:
    """Return what a reader can do without, as the protocol has it; columns that are not known here do not matter."""
    return Projection(
        message.columns & COLUMN_FLAGS,
        message.from_us if message.HasField("from_us") else None,
        message.until_us if message.HasField("until_us") else None,
        min(message.end_offset, OFFSET_MAX) if message.HasField("end_offset") else OFFSET_MAX,
    )
