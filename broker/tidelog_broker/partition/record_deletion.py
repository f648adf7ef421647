"""Deletion of records below an offset on request: at the owner, answered when a quorum has agreed.

A requested deletion is decided like one by retention (`core.replication.deletion`), at any committed offset, whether or
not a segment ends there: readers no longer see the records, and files are deleted when all of their records are below
the offset. Without an answer the outcome is unknown; the request may be repeated.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tidelog_broker.partition.access import Access
from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.state import RETRY_AFTER_MS, PartitionState
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

AGREE_TIMEOUT_S: Final = 10.0
"""Time limit for a quorum to agree, including changes of the owner."""


class RecordDeletion:
    """Deletes records of one partition. All methods are for the event loop's thread."""

    def __init__(self, state: PartitionState, changes: ChangeNotifier, driver: ReplicaDriver, access: Access) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._access = access

    async def delete_below(self, offset: int, *, epoch: int | None = None) -> None:
        """Delete all records below an offset.

        Args:
            epoch: the epoch in which the offset was looked up; None if the offset was given by the client.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE if the offset is above the high watermark or was truncated; FORBIDDEN
                while the topic is on hold; NOT_OWNER and others as `Access.confirm_owner`; TIMED_OUT if too few
                replicas answer.
        """
        await self._access.confirm_owner()
        state = self._state
        self._refuse_held()
        if state.was_cut(offset, epoch):
            raise state.out_of_range(offset, epoch)
        if offset > state.high_watermark:
            raise ProtocolError(
                pb.OFFSET_OUT_OF_RANGE,
                f"{state.name}: cannot delete records below offset {offset}; the offset must be at most the end of the "
                f"log, {state.high_watermark}",
                log_start_offset=state.log_start,
                high_watermark=state.high_watermark,
            )
        await self.agree(offset, epoch=state.epoch)

    async def agree(self, offset: int, *, epoch: int) -> None:
        """Propose the deletion of records below an offset, and wait until a quorum agrees.

        The proposal is repeated after a change of the epoch, unless `epoch` has ended before the offset: other records
        may have these offsets now.

        Args:
            offset: a committed offset.
            epoch: the epoch in which it is committed.

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
                f"{state.name}: too few replicas agreed within {AGREE_TIMEOUT_S:g} s to delete the records below "
                f"offset {offset}; the deletion may still take effect, and can be requested again",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None

    def _refuse_held(self) -> None:
        if self._state.topic.config.hold:
            raise ProtocolError(
                pb.FORBIDDEN,
                f"topic {self._state.topic.name!r} is on hold; end the hold first: tidelog topic alter "
                f"{self._state.topic.name} --no-hold",
            )
