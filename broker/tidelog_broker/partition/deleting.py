"""Deleting records below an offset because somebody asks: at the owner, answered when it holds for good.

What is asked for is decided as what retention decides (`core.replication.deletion`), at any offset that is committed,
whether or not a segment ends there: readers are told that what lies below is gone, and files go when all that they hold
lies below. An answer that does not come says nothing: it may be deleted, or not, or later. Asking again does no harm.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog_broker.partition.access import Access
from tidelog_broker.partition.changes import Changes
from tidelog_broker.partition.state import RETRY_AFTER_MS, PartitionState
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

AGREE_TIMEOUT_S: Final = 10.0
"""For a quorum to note it, with changes of the owner in between."""


class RecordDeletion:
    """See the module. All methods are for the event loop's thread.

    Args:
        state, changes: of the partition.
        driver: has the replicas note it.
        access: makes sure that this node is the owner.
    """

    def __init__(self, state: PartitionState, changes: Changes, driver: ReplicaDriver, access: Access) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._access = access

    async def delete_below(self, offset: int, *, epoch: int | None = None) -> None:
        """Delete all records below an offset.

        Args:
            offset: below which.
            epoch: in which that was found to be the offset that is meant; None: the caller has named it.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds where it lies behind the high watermark, FORBIDDEN while
                the topic is held; NOT_OWNER and others as `Access.confirm_owner`; TIMED_OUT: too few replicas answer.
        """
        await self._access.confirm_owner()
        state = self._state
        self._refuse_held()
        if state.was_cut(offset, epoch):
            raise state.out_of_range(offset, epoch)
        if offset > state.high_watermark:
            raise ProtocolError(
                pb.OFFSET_OUT_OF_RANGE,
                f"{state.name}: nothing can be deleted up to offset {offset}, the log ends at {state.high_watermark}",
                log_start_offset=state.log_start,
                high_watermark=state.high_watermark,
            )
        await self.agree(offset, epoch=state.epoch)

    async def agree(self, offset: int, *, epoch: int) -> None:
        """Have a quorum note that records below an offset are deleted, and wait for it.

        Where epochs end meanwhile it goes on, but not where one ended in front of the offset: other records may lie
        below that now.

        Args:
            offset: below which; it is committed.
            epoch: in which that is so.

        Raises:
            ProtocolError: as `delete_below`.
        """
        state = self._state
        try:
            async with asyncio.timeout(AGREE_TIMEOUT_S):
                while state.log_start < offset:
                    await self._access.ensure_active()
                    if state.was_cut(offset, epoch):
                        raise state.out_of_range(offset, epoch)
                    self._refuse_held()
                    self._driver.delete_below(min(offset, state.high_watermark))
                    if state.log_start < offset:
                        await self._changes.change()
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT,
                f"{state.name}: too few replicas have noted that records below {offset} are deleted; they may be yet",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None

    def _refuse_held(self) -> None:
        if self._state.topic.config.hold:
            raise ProtocolError(
                pb.FORBIDDEN, f"{self._state.topic.name!r} is on hold: nothing of it is deleted until that is ended"
            )
