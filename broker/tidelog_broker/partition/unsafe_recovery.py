"""Ending a partition's epoch without a quorum, when an operator gives up its other replicas.

No node can distinguish lost replicas from unreachable ones, so this node gives the others some time to answer. If a
quorum answers, nothing is lost and the decision is an ordinary one. Without a quorum this node ends the epoch at the
end of the longest log among the answers, or at an end that one of them has accepted, and opens the next epoch alone. A
working partition is not changed: it has an owner and a live quorum, and commits its records. (Live replicas that do not
participate, as in LIMBO, are recognised by records that stay uncommitted.)
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
"""Time limit for the decision, a little longer than the core's attempt (`Timing.unsafe_ms`)."""

COMMIT_S: Final = 1.0
"""How long pending records may take to be committed if a quorum is alive."""

_COMMIT_POLL_S: Final = 0.02


class UnsafeRecovery:
    """Ends the open epoch of one partition that this node stores, without a quorum if it has to.

    Args:
        alive: returns whether another node is alive, as far as this node knows.
    """

    def __init__(self, partition: Partition, alive: Callable[[str], bool]) -> None:
        self._partition = partition
        self._replica = partition.replica
        self._alive = alive
        self._loop = partition.tools.loop

    async def run(self) -> pb.ClusterChangeReply:
        """End the epoch, and following ones whose replicas are lost, too; return the end of the last of them.

        Raises:
            ProtocolError: INVALID_REQUEST if this node's copy cannot be used, or the partition has its quorum;
                TIMED_OUT if the end of the epoch is not decided in time.
        """
        partition = self._partition
        self._check()
        if await self._works():
            active = self._replica.state.active
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{partition.name} has its quorum: {active.owner} owns it, and enough of {', '.join(active.placement)} "
                "are alive; nothing was changed",
            )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                unsafe = False
                while True:
                    epoch = partition.state.epoch
                    decision = await self._end_epoch()
                    unsafe |= decision.unsafe
                    # An earlier proposal may have been decided, whose next owner may be lost as well.
                    if not self._is_lost():
                        return pb.ClusterChangeReply(epoch=epoch, end_offset=decision.end_offset, unsafe=unsafe)
        except TimeoutError:
            raise ProtocolError(
                pb.TIMED_OUT,
                f"{partition.name}: epoch {partition.state.epoch} was not ended within {TIMEOUT_S:g} s; check `tidelog "
                "cluster status`, and repeat the command if the partition still lacks its quorum",
            ) from None

    async def _end_epoch(self) -> pb.EpochDecision:
        self._check()
        partition, replica = self._partition, self._replica
        epoch = partition.state.epoch
        log.warning(
            "%s: an operator has requested to end epoch %d, without a quorum if necessary", partition.name, epoch
        )
        replica.candidate.recover_unsafely(self._now_ms())
        partition.driver.tick()
        while partition.state.epoch == epoch and replica.state.halted is None and partition.state.refusal is None:
            await partition.changes.change()
        if partition.state.epoch == epoch:
            raise partition.state.refusal or self._halted_error()
        return replica.state.decision(epoch)

    async def _works(self) -> bool:
        """Return whether the partition has its owner and its quorum, and commits its records."""
        state, until_s = self._partition.state, self._loop.time() + COMMIT_S
        end_offset = state.log.end_offset
        while self._is_served() and state.high_watermark < end_offset and self._loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_COMMIT_POLL_S)
        return self._is_served() and state.high_watermark >= end_offset

    def _is_served(self) -> bool:
        replica = self._replica
        has_owner = self._partition.state.assigner is not None or (
            replica.state.active.owner not in {"", replica.state.node_id} and not replica.suspects_owner(self._now_ms())
        )
        return has_owner and not replica.state.promised and not self._is_lost()

    def _is_lost(self) -> bool:
        """Return whether too few replicas of the open epoch are alive to write to it or to end it."""
        active = self._replica.state.active
        living = sum(map(self._alive, active.placement))
        return living < max(active.ack_quorum, seal_quorum(len(active.placement), active.ack_quorum))

    def _check(self) -> None:
        """Refuse if this node's copy cannot be used for the recovery.

        Raises:
            ProtocolError: INVALID_REQUEST.
        """
        replica, name = self._replica, self._partition.name
        if replica.state.halted is not None:
            raise self._halted_error()
        if not replica.state.is_member:
            holders = ", ".join(replica.state.active.placement)
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name}: node {replica.state.node_id!r} is not a replica of the open epoch "
                f"{self._partition.state.epoch}; choose one of its replicas: {holders}",
            )
        if replica.state.doubt == "damaged":
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name}: the copy on node {replica.state.node_id!r} is damaged; choose another node",
            )
        if replica.backfill.incomplete:
            epochs = ", ".join(map(str, sorted(replica.backfill.incomplete)))
            raise ProtocolError(
                pb.INVALID_REQUEST,
                f"{name}: the copy on node {replica.state.node_id!r} lacks records of epochs {epochs}; choose another "
                "node",
            )

    def _halted_error(self) -> ProtocolError:
        return ProtocolError(
            pb.INVALID_REQUEST,
            f"{self._partition.name}: the copy on node {self._replica.state.node_id!r} cannot be used: "
            f"{self._replica.state.halted}; choose another node",
        )

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)
