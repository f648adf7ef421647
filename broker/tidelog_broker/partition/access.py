"""Waiting until this node may serve a partition to readers, to writers, or after confirming its ownership.

A waiting request is refused, with an error that names the owner, once this node can no longer serve it.
"""

from __future__ import annotations

import asyncio

from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.state import RETRY_AFTER_MS, PartitionState
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CONFIRM_TIMEOUT_S = 2.0
"""How long an owner waits until a quorum confirms its ownership."""


class Access:
    """Lets requests for one partition wait until this node may serve them, or refuses them.

    All methods are for the event loop's thread.
    """

    def __init__(self, state: PartitionState, changes: ChangeNotifier, driver: ReplicaDriver) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._replica = driver.replica
        self._confirmations: dict[int, asyncio.Future[None]] = {}

    async def ensure_active(self) -> None:
        """Wait until this node may assign offsets; begin an epoch of a single copy first if needed.

        Raises:
            ProtocolError: NOT_OWNER, LIMBO, QUORUM_LOST, STORAGE_FAILED, DISK_FULL, or the topic was deleted.
        """
        while True:
            error = self._state.unwritable()
            if error is not None:
                raise error
            if self._replica.can_append:
                return
            self._driver.want_owner()
            if self._must_wait():
                await self._changes.change()

    def _must_wait(self) -> bool:
        return not self._replica.can_append and self._state.unwritable() is None

    async def ensure_readable(self) -> None:
        """Ensure that this node may serve readers. A single copy in LIMBO is readable up to its damage.

        Raises:
            ProtocolError: NOT_OWNER if this node has no copy, STORAGE_FAILED, DISK_FULL, or the topic was deleted.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refusal
        if not self._replica.state.is_member:
            raise state.not_owner()
        if state.is_alone and self._replica.state.halted is None:
            await self.ensure_active()

    async def confirm_owner(self) -> None:
        """Ensure that this node still owned the active epoch after this call began: no other node has committed more.

        Raises:
            ProtocolError: NOT_OWNER, or an error of `ensure_active`; QUORUM_LOST if too few replicas answer.
        """
        await self.ensure_readable()
        if self._state.is_alone:
            return
        await self.ensure_active()
        number = self._driver.confirm()
        confirmed = self._confirmations[number] = asyncio.get_running_loop().create_future()
        self._driver.execute_effects()
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                await confirmed
        except TimeoutError:
            raise ProtocolError(
                pb.QUORUM_LOST,
                f"{self._state.name}: too few replicas confirmed within {CONFIRM_TIMEOUT_S:g} s that this node is the "
                "owner; start the nodes that are down, or check the network between the nodes",
                retry_after_ms=RETRY_AFTER_MS,
            ) from None
        finally:
            self._confirmations.pop(number, None)

    async def ensure_given_out(self, offset: int, record_epoch: int | None = None) -> None:
        """Refuse an offset beyond the end of the log; return if the end is unknown, so that the reader waits.

        If the reader knows the epoch of the record before the offset, also refuse an offset beyond a truncation of that
        epoch.

        An owner that does not know its successor may lack records that the successor has committed. So it confirms its
        ownership first, but only if the offset is beyond its own end.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds; NOT_OWNER if another node knows whether the log was
                truncated; an error of `confirm_owner`.
        """
        state = self._state
        if state.lies_beyond(offset, record_epoch):
            await self.confirm_owner()
            if state.lies_beyond(offset, record_epoch):
                raise state.out_of_range(offset, record_epoch)
        elif state.owner_id not in {self._replica.state.node_id, ""} and state.was_cut(offset, record_epoch):
            raise state.not_owner()

    def owner_confirmed(self, number: int) -> None:
        """Resume waiters: a quorum knows of no later epoch than this node's; see `driver_ports.Listener`."""
        for attempt, waiter in self._confirmations.items():
            if attempt <= number and not waiter.done():
                waiter.set_result(None)

    def not_confirmed(self) -> None:
        """Refuse all waiters for a confirmation: the epoch has ended."""
        for waiter in self._confirmations.values():
            if not waiter.done():
                waiter.set_exception(self._state.not_owner())
