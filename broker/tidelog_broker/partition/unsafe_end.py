"""Ending a partition's epoch with what is left of its replicas, when an operator gives the others up for good.

No node can tell replicas that are gone from replicas that cannot be reached. This one gives the others a moment to
answer. With a quorum nothing is lost and nothing is unsafe; without one it ends the epoch at the longest log among
those that did, or where one of them had accepted that it ends, and opens the next one alone. A partition that works is
left alone: it has an owner, a quorum lives, and all that is written is committed. (Where replicas live and yet take no
part, as in limbo, a record that waits for them shows it.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tidelog_broker.core.replication.paxos import seal_quorum
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
"""For the decision, a little more than the core tries (`Timing.unsafe_ms`)."""

COMMIT_S: Final = 1.0
"""So long what is on its way may take to be committed where a quorum lives."""

_COMMIT_POLL_S: Final = 0.02


class UnsafeEnd:
    """Of one partition that is stored here.

    Args:
        partition: whose epoch is to end.
        alive: whether another node lives, as far as is known here.
    """

    def __init__(self, partition: Partition, alive: Callable[[str], bool]) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._alive = alive
        self._loop = partition.tools.loop

    async def run(self) -> pb.ClusterChangeReply:
        """End the epoch, and the ones after it whose replicas are lost as well; return where the first one ended.

        Raises:
            ProtocolError: INVALID_REQUEST when this copy cannot be the one that counts, or the partition works;
                TIMED_OUT when nothing came of it in time.
        """
        partition = self._partition
        self._check()
        if await self._works():
            active = self._replica.state.active
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{partition.name} has its quorum: {active.owner} owns it, and enough of {', '.join(active.placement)} "
                "live; nothing was done",
            )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                unsafe = False
                while True:
                    epoch = partition.state.epoch
                    decision = await self._end_epoch()
                    unsafe |= decision.unsafe
                    # What had been proposed before may have been kept, and its successor may be lost as well.
                    if not self._is_lost():
                        return pb.ClusterChangeReply(epoch=epoch, end_offset=decision.end_offset, unsafe=unsafe)
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT, f"{partition.name}: epoch {partition.state.epoch} could not be ended; see this node's log"
            ) from None

    async def _end_epoch(self) -> pb.EpochDecision:
        self._check()
        partition, replica = self._partition, self._replica
        epoch = partition.state.epoch
        log.warning("%s: an operator wants epoch %d ended without a quorum", partition.name, epoch)
        replica.candidate.recover_unsafely(self._now_ms())
        partition.driver.tick()
        while partition.state.epoch == epoch and replica.state.halted is None and partition.state.refusal is None:
            await partition.changes.change()
        if partition.state.epoch == epoch:
            raise partition.state.refusal or self._halted()
        return replica.state.decision(epoch)

    async def _works(self) -> bool:
        """Whether the partition has its owner and its quorum, and commits what it has."""
        state, until_s = self._partition.state, self._loop.time() + COMMIT_S
        end_offset = state.log.end_offset
        while self._is_served() and state.high_watermark < end_offset and self._loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_COMMIT_POLL_S)
        return self._is_served() and state.high_watermark >= end_offset

    def _is_served(self) -> bool:
        replica = self._replica
        has_owner = self._partition.state.writer is not None or (
            replica.state.active.owner not in {"", replica.state.node_id} and not replica.suspects_owner(self._now_ms())
        )
        return has_owner and not replica.state.promised and not self._is_lost()

    def _is_lost(self) -> bool:
        """Whether too few replicas of the open epoch live to write to it or to end it."""
        active = self._replica.state.active
        living = sum(map(self._alive, active.placement))
        return living < max(active.ack_quorum, seal_quorum(len(active.placement), active.ack_quorum))

    def _check(self) -> None:
        """See that this node's copy can be the one that counts.

        Raises:
            ProtocolError: INVALID_REQUEST, and why.
        """
        replica, name = self._replica, self._partition.name
        if replica.state.halted is not None:
            raise self._halted()
        if not replica.state.is_member:
            holders = ", ".join(replica.state.active.placement)
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{replica.state.node_id} holds no copy of {name}'s open epoch {self._partition.state.epoch}; "
                f"{holders} do",
            )
        if replica.state.doubt == "damaged":
            raise ProtocolError(
                pb.INVALID_REQUEST, f"{name}: the copy on {replica.state.node_id} is damaged; name another node"
            )
        if replica.backfill.incomplete:
            epochs = ", ".join(map(str, sorted(replica.backfill.incomplete)))
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name}: the copy on {replica.state.node_id} lacks epochs {epochs}; name another node",
            )

    def _halted(self) -> ProtocolError:
        return ProtocolError(
            pb.INVALID_REQUEST,
            f"{self._partition.name}: this copy takes no part any more: {self._replica.state.halted}",
        )

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
