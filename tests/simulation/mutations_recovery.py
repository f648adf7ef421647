"""Mutations of an operator's recovery without a quorum, and of overruled nodes. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog_broker.core.replication import candidate, paxos
from tidelog_broker.core.replication.candidate import Candidate
from tidelog_broker.core.replication.effects import EpochDecided
from tidelog_broker.core.replication.paxos import Promise, ballot_key
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_broker.partition.partition import Partition
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def adopted_without_a_mark() -> Replacements:
    """A value that a surviving node had accepted is adopted unchanged."""

    def choose(promises: Sequence[Promise], *, unsafe: bool = False, **rest: Any) -> bytes:
        accepted = [promise for promise in promises if promise.accepted is not None]
        if unsafe and accepted:
            return max(accepted, key=lambda promise: ballot_key(promise.accepted or pb.Ballot())).accepted_value
        return paxos.choose_value(promises, unsafe=unsafe, **rest)

    return [(candidate, "choose_value", choose)]


def decided_without_a_mark() -> Replacements:
    """A decision without a quorum is not marked."""
    original = paxos.decision_value

    def decision_value(*arguments: Any, unsafe: bool = False, **rest: Any) -> bytes:
        del unsafe
        return original(*arguments, **rest)

    return [(paxos, "decision_value", decision_value)]


def named_copy_is_the_truth() -> Replacements:
    """The copy that is named counts, whatever others hold who are left as well."""
    original = Candidate._choose_unsafely

    def choose_unsafely(self: Candidate, now_ms: int) -> None:
        me = self._state.node_id
        self._promises = {me: self._promises[me]}
        original(self, now_ms)

    return [(Candidate, "_choose_unsafely", choose_unsafely)]


def others_not_waited_for() -> Replacements:
    """The named node continues as soon as it has its own promise."""
    original = Candidate.on_seal_reply

    def on_seal_reply(self: Candidate, sender: str, reply: pb.SealReply, now_ms: int) -> None:
        original(self, sender, reply, now_ms)
        if self._unsafe_until_ms is not None and self.phase == "sealing" and self._state.node_id in self._promises:
            self._choose_unsafely(now_ms)

    return [(Candidate, "on_seal_reply", on_seal_reply)]


def loss_not_told() -> Replacements:
    """The truncation of an epoch is not reported."""

    def tell_of_loss(self: Partition, news: EpochDecided) -> None:
        return

    return [(Partition, "_log_data_loss", tell_of_loss)]


def who_knows_better_wins() -> Replacements:
    """Where chains part, the one that an operator had recovered stops."""

    def differs(self: ReplicaState, sender: str, epoch: int, other: pb.EpochDecision) -> None:
        here = self.decision(epoch)
        if here.previous_hash != other.previous_hash:
            self.forks(sender, epoch, "the chains fork")
            return
        self.send_chain(sender, epoch)
        if here.unsafe or not other.unsafe:
            self.halt(f"two decisions about epoch {epoch}: the chains fork", permanently=True)

    return [(ReplicaState, "differs", differs)]


def who_knows_better_goes_on() -> Replacements:
    """No node stops where chains diverge."""

    def differs(self: ReplicaState, sender: str, epoch: int, other: pb.EpochDecision) -> None:
        del other
        self.send_chain(sender, epoch)

    return [(ReplicaState, "differs", differs), (ReplicaState, "forks", lambda *_: None)]


def parting_not_looked_for() -> Replacements:
    """A node with a diverging chain stops at once, without looking for the point of divergence."""

    def forks(self: ReplicaState, sender: str, epoch: int, reason: str) -> None:
        del sender, epoch
        self.halt(reason, permanently=True)

    return [(ReplicaState, "forks", forks)]


def watermark_never_goes_back() -> Replacements:
    """Committed records stay visible to readers after they were truncated."""

    def commit_ends(self: ReplicaState, offset: int, *, unsafe: bool) -> None:
        del unsafe
        self.raise_watermark(offset)

    return [(ReplicaState, "commit_ends", commit_ends)]
