"""Mutations of what a loss of records in memory means. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidelog_broker.core.replication import candidate, paxos
from tidelog_broker.core.replication.acceptor import Acceptor
from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.candidate import Candidate
from tidelog_broker.core.replication.chain import LostRecords
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.paxos import Promise
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def ceiling_not_stored() -> Replacements:
    """The ceiling is raised only in memory."""

    def raise_ceiling(self: Fence, end_offset: int) -> pb.FenceEntry:
        self.ceiling = end_offset + 4
        return self._copy()

    return [(Fence, "raise_ceiling", raise_ceiling)]


def ceiling_raised_once() -> Replacements:
    """The first ceiling of an epoch is never raised."""
    original = Fence.raise_ceiling

    def raise_ceiling(self: Fence, end_offset: int) -> pb.FenceEntry:
        entry = original(self, end_offset)
        self.ceiling = 2**64
        return entry

    return [(Fence, "raise_ceiling", raise_ceiling)]


def lost_copy_is_short_log() -> Replacements:
    """A copy that was lost counts as one that never had records."""
    return [(ReplicaLog, "doubt", property(lambda self: ""))]


def lowest_ceiling() -> Replacements:
    """The lowest ceiling determines how far records are lost."""
    original = paxos.choose_value

    def choose(promises: Sequence[Promise], **rest: Any) -> bytes:
        lowest = min((promise.ceiling for promise in promises if promise.ceiling), default=0)
        return original([replace(promise, ceiling=min(promise.ceiling, lowest)) for promise in promises], **rest)

    return [(candidate, "choose_value", choose)]


def ceilings_ignored() -> Replacements:
    """An epoch ends like the longest log, and the next one gives out the offsets from there on."""
    original = paxos.decision_value

    def decision_value(*arguments: Any, lost_until: int = 0, **rest: Any) -> bytes:
        del lost_until
        return original(*arguments, **rest)

    return [(paxos, "decision_value", decision_value)]


def loss_not_carried() -> Replacements:
    """A decision forgets the lost records of the one before, which its owner may not have filled."""
    original = paxos.choose_value

    def choose(promises: Sequence[Promise], *, lost_until: int = 0, **rest: Any) -> bytes:
        del lost_until
        return original(promises, **rest)

    return [(candidate, "choose_value", choose)]


def offsets_not_filled() -> Replacements:
    """An owner gives out the offsets of lost records."""

    def fill(self: Ownership, now_ms: int) -> None:
        recovered = self._recovered
        assert recovered is not None
        self._own(recovered, now_ms)

    return [(Ownership, "_fill", fill)]


def losses_skipped_silently() -> Replacements:
    """Readers continue behind lost records without an error."""
    return [
        (PartitionState, "resume_offset", lambda self, offset: offset),
        (PartitionState, "readable_until", lambda self, offset: self.readable_end),
    ]


def reads_run_into_losses() -> Replacements:
    """A read that begins before lost records continues after them."""
    return [(PartitionState, "readable_until", lambda self, offset: self.readable_end)]


def absent_replicas_not_waited_for() -> Replacements:
    """An epoch ends although absent replicas, fewer than a quorum, may have the lost records."""

    def quorum(self: Candidate) -> int:
        active = self._state.active
        return paxos.seal_quorum(len(active.placement), active.ack_quorum)

    def replicas(self: Candidate) -> int:
        return quorum(self) if self._short else len(self._state.active.placement)

    return [(Candidate, "replicas", property(replicas)), (Candidate, "seal_quorum", property(quorum))]


def missing_is_lost() -> Replacements:
    """Readers of an ended epoch that is being fetched get the error for a lost one."""

    def lost_ranges(self: Backfill) -> tuple[LostRecords, ...]:
        state = self._state
        return tuple(
            LostRecords(state.start_of(one), state.decision(one).end_offset) for one in sorted(self.incomplete)
        )

    return [(Backfill, "lost_ranges", property(lost_ranges))]


def acknowledged_in_doubt() -> Replacements:
    """A replica that has lost its copy ends its doubt with the first records that it fetches."""

    def end_doubt(self: ReplicaState) -> None:
        self.doubt = ""

    return [(ReplicaState, "end_doubt_if_whole", end_doubt)]


def ceiling_not_reported() -> Replacements:
    """A replica reports its lost copy without its ceiling."""
    original = ReplicaState.send

    def send(self: ReplicaState, to: str, message: Any, batches: Sequence[memoryview] = ()) -> None:
        if isinstance(message, pb.SealReply):
            message.ceiling = 0
        original(self, to, message, batches)

    return [(ReplicaState, "send", send)]


def lost_log_waited_for() -> Replacements:
    """An accept waits for a log that no replica has any more."""
    return [(Acceptor, "_is_lost", lambda self, ask: False)]
