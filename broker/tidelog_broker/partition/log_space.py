"""Space in a partition's log for what its owner appends: made sure of before offsets are given out."""

from __future__ import annotations

from tidelog_broker.core.replication.epoch_writer import Owner
from tidelog_broker.storage.partition.partition_log import PartitionLog


class LogSpace:
    """See the module."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._has_rolled = False

    def fits(self, owner: Owner, needed_bytes: int) -> bool:
        """Whether a group can be appended without taking space or beginning a segment or an epoch first."""
        active = self._log.active
        return active is not None and active.epoch == owner.epoch and active.has_room(needed_bytes)

    def make(self, owner: Owner, needed_bytes: int) -> None:
        """Make sure of the space for a group; the owner's epoch begins in the log with its first one.

        Runs on an I/O worker.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        active = self._log.active
        if active is None or active.epoch != owner.epoch:
            self._log.start_epoch(owner.epoch, owner.next_offset)
        before = self._log.active
        segments = before.segment_count if before is not None else 0
        self._log.reserve(needed_bytes)
        after = self._log.active
        # Looked at on the loop once the group is there.
        self._has_rolled |= after is not None and after.segment_count > segments

    def take_rolled(self) -> bool:
        """Whether a segment has begun since this was last asked."""
        rolled, self._has_rolled = self._has_rolled, False
        return rolled
