"""Waiting until this node may serve a partition: its readers, its writers, or who must know that it is still the owner.

Who waits is refused as soon as waiting makes no sense, with the error that says where to go.
"""

from __future__ import annotations

import asyncio

from tidelog_broker.partition.changes import Changes
from tidelog_broker.partition.state import RETRY_AFTER_MS, PartitionState
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

CONFIRM_TIMEOUT_S = 2.0


class Access:
    """See the module. All methods are for the event loop's thread."""

    def __init__(self, state: PartitionState, changes: Changes, driver: ReplicaDriver) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._replica = driver.replica
        self._confirmations: dict[int, asyncio.Future[None]] = {}

    async def ensure_active(self) -> None:
        """Return when this node may give out offsets, beginning an epoch of a lone copy first if need be.

        Raises:
            ProtocolError: NOT_OWNER, LIMBO, QUORUM_LOST, STORAGE_FAILED, DISK_FULL, or the topic is gone.
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
        """Make sure that this node serves readers. A lone partition in LIMBO is readable up to its damage.

        Raises:
            ProtocolError: NOT_OWNER where there is no copy, STORAGE_FAILED, DISK_FULL, or the topic is gone.
        """
        state = self._state
        if state.refusal is not None:
            raise state.refusal
        if not self._replica.state.is_member:
            raise state.not_owner()
        if state.is_alone and self._replica.state.halted is None:
            await self.ensure_active()

    async def confirm_owner(self) -> None:
        """Make sure that this node owned the active epoch after this was called: nobody has committed more elsewhere.

        Raises:
            ProtocolError: NOT_OWNER, or what `ensure_active` raises; QUORUM_LOST when too few replicas answer.
        """
        await self.ensure_readable()
        if self._state.is_alone:
            return
        await self.ensure_active()
        number = self._driver.confirm()
        confirmed = self._confirmations[number] = asyncio.get_running_loop().create_future()
        self._driver.pump()
        try:
            async with asyncio.timeout(CONFIRM_TIMEOUT_S):
                await confirmed
        except TimeoutError:
            raise ProtocolError(
                pb.QUORUM_LOST, f"{self._state.name}: too few replicas answer", retry_after_ms=RETRY_AFTER_MS
            ) from None
        finally:
            self._confirmations.pop(number, None)

    async def ensure_given_out(self, offset: int, record_epoch: int | None = None) -> None:
        """Refuse an offset behind all that was ever given out, where that can be known; elsewhere its reader waits.

        Where its reader knows in which epoch the record in front of it was, also one in front of which the log was cut.

        A node that was succeeded and does not know it has perhaps less than its successor has committed, so that a
        quorum is asked first. Nobody is, and nothing is waited for, unless the offset lies behind what this owner has.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE with the bounds; NOT_OWNER where another node knows whether the log was
                cut. What `confirm_owner` raises, where nobody can tell.
        """
        state = self._state
        if state.lies_beyond(offset, record_epoch):
            await self.confirm_owner()
            if state.lies_beyond(offset, record_epoch):
                raise state.out_of_range(offset, record_epoch)
        elif state.owner_id not in {self._replica.state.node_id, ""} and state.was_cut(offset, record_epoch):
            raise state.not_owner()

    def owner_confirmed(self, number: int) -> None:
        """A quorum knows of no later epoch than this node's; see `driver.Listener`."""
        for asked, waiter in self._confirmations.items():
            if asked <= number and not waiter.done():
                waiter.set_result(None)

    def not_confirmed(self) -> None:
        """The epoch is over: whoever waits for its confirmation is sent on."""
        for waiter in self._confirmations.values():
            if not waiter.done():
                waiter.set_exception(self._state.not_owner())
