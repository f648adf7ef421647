"""Mutations of how an epoch's end is decided: promises, accepts, quorums. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from tidelog_broker.core.replication import candidate, paxos
from tidelog_broker.core.replication.acceptor import Acceptor, Opening
from tidelog_broker.core.replication.candidate import Candidate
from tidelog_broker.core.replication.catch_up import CatchUp
from tidelog_broker.core.replication.effects import SyncAhead, WriteChain, WriteFences
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.paxos import Promise, ballot_key
from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def seal_promises_nothing() -> Replacements:
    """SEAL is answered with the log's end, and nothing is promised by it."""

    def on_seal(self: Acceptor, sender: str, ask: pb.Seal, now_ms: int) -> None:
        state = self._state
        if state.is_current(sender, ask.epoch, now_ms) and state.fence is not None:
            reply = pb.SealReply(ballot=ask.ballot, status=pb.HELD, promised=ask.ballot)
            reply.end_offset, reply.end_digest = state.tail.durable
            if state.fence.accepted is not None:
                reply.accepted.CopyFrom(state.fence.accepted)
                reply.accepted_value = state.fence.entry.accepted_value
            state.send(sender, state.about(reply, ask.epoch))

    return [(Acceptor, "on_seal", on_seal)]


def append_ignores_promise() -> Replacements:
    """Appends are taken and acknowledged whatever is promised."""
    original = Replica._on_append

    def on_append(self: Replica, *arguments: Any) -> None:
        fence = self.state.fence
        if fence is None or fence.promised is None:
            original(self, *arguments)
            return
        kept = pb.Ballot()
        kept.CopyFrom(fence.entry.promised)
        fence.entry.ClearField("promised")
        original(self, *arguments)
        if self.state.fence is fence:
            fence.entry.promised.CopyFrom(kept)

    def acknowledge(self: Replica, now_ms: int) -> None:
        del now_ms
        if self.state.active.owner != self.state.node_id:
            self._send_ack(pb.HELD)

    return [(Replica, "_on_append", on_append), (Replica, "_acknowledge", acknowledge)]


def adopts_nothing() -> Replacements:
    """Values that others have accepted are not adopted."""

    def choose(promises: Sequence[Promise], **rest: Any) -> bytes:
        return paxos.choose_value([replace(one, accepted=None, accepted_value=b"") for one in promises], **rest)

    return [(candidate, "choose_value", choose)]


def shortest_end() -> Replacements:
    """The epoch ends where the shortest log among the promises does."""

    def choose(promises: Sequence[Promise], **rest: Any) -> bytes:
        shortest = min(promises, key=lambda promise: promise.end_offset)
        ends = [replace(one, end_offset=shortest.end_offset, end_digest=shortest.end_digest) for one in promises]
        return paxos.choose_value(ends, **rest)

    return [(candidate, "choose_value", choose)]


def accept_ignores_promise() -> Replacements:
    """OPEN_EPOCH is accepted under any ballot."""

    def may_accept(self: Fence, ballot: pb.Ballot, value: bytes) -> bool:
        return True

    return [(Fence, "may_accept", may_accept)]


def accept_without_log() -> Replacements:
    """OPEN_EPOCH is accepted by all nodes that promised, regardless of their logs."""

    def on_open(self: Acceptor, sender: str, ask: pb.OpenEpoch, now_ms: int) -> None:
        state, fence = self._state, self._state.fence
        if not state.is_current(sender, ask.epoch, now_ms) or not self._fits(sender, ask) or fence is None:
            return
        if not fence.may_accept(ask.ballot, ask.value):
            return
        self._on_promise(now_ms)
        reply = pb.OpenEpochReply(ballot=ask.ballot, status=pb.HELD)

        def accepted(_ok: bool, _now_ms: int) -> None:
            if state.active.epoch == ask.epoch:
                state.send(sender, state.about(reply, ask.epoch))

        state.write(WriteFences([fence.accept(ask.ballot, ask.value)]), accepted)

    return [(Acceptor, "on_open", on_open)]


def seal_quorum_of_one() -> Replacements:
    """One promise ends an epoch."""
    one = lambda replicas, ack_quorum: 1  # noqa: E731
    return [(candidate, "seal_quorum", one), (paxos, "seal_quorum", one)]


def decided_by_one() -> Replacements:
    """The candidate continues as soon as one replica has accepted."""

    def on_open_reply(self: Candidate, sender: str, reply: pb.OpenEpochReply, now_ms: int) -> None:
        if self.phase == "opening" and ballot_key(reply.ballot) == ballot_key(self._ballot) and reply.status == pb.HELD:
            self._host.decided(self._value)

    return [(Candidate, "on_open_reply", on_open_reply)]


def fast_path_at_high_ballot() -> Replacements:
    """A planned roll-over proposes without a seal, at an ordinary ballot."""
    original = Candidate.roll_over

    def roll_over(self: Candidate, *arguments: Any, **named: Any) -> None:
        def high(**fields: Any) -> pb.Ballot:
            return pb.Ballot(**{**fields, "round": self._highest_round + 10})

        with patch.object(candidate, "pb", _WithBallot(pb, high)):
            original(self, *arguments, **named)

    return [(Candidate, "roll_over", roll_over)]


class _WithBallot:
    """The protocol's module with another way to make ballots."""

    def __init__(self, module: Any, ballot: Any) -> None:
        self._module = module
        self.Ballot = ballot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def promise_not_checked_after_fetch() -> Replacements:
    """A log fetched for a proposal is accepted under it, regardless of later promises."""

    def stop_appending(self: Replica, now_ms: int) -> None:
        self._promised_ms = now_ms
        if self.state.role == "owner":
            self.state.become("retiring")

    def reopen(self: Replica, opening: Opening, now_ms: int) -> None:
        message = opening.message
        fence = self.state.fence
        if fence is None or message.epoch != self.state.active.epoch:
            return
        fence.entry.accepted.CopyFrom(message.ballot)
        fence.entry.accepted_value = message.value
        reply = pb.OpenEpochReply(ballot=message.ballot, status=pb.HELD)
        if fence.promised is None or ballot_key(fence.promised) < ballot_key(message.ballot):
            fence.entry.promised.CopyFrom(message.ballot)

        def accepted(_ok: bool, _now_ms: int) -> None:
            if self.state.active.epoch == message.epoch:
                self.state.send(opening.sender, self.state.about(reply, message.epoch))

        self.state.write(WriteFences([fence._copy()]), accepted)

    original = CatchUp._take

    def take_tail(self: CatchUp, fetch: Any, *rest: Any) -> None:
        fence = self._state.fence
        if fence is None or self._opening is None or fence.promised is None:
            original(self, fetch, *rest)
            return
        kept = pb.Ballot()
        kept.CopyFrom(fence.entry.promised)
        fence.entry.promised.CopyFrom(self._opening.message.ballot)
        try:
            original(self, fetch, *rest)
        finally:
            fence.entry.promised.CopyFrom(kept)

    return [
        (Replica, "_stop_appending", stop_appending),
        (Replica, "_reopen", reopen),
        (CatchUp, "_take", take_tail),
    ]


def second_value_at_reserved_ballot() -> Replacements:
    """The owner proposes by plan again, with another plan."""

    def roll_over(self: Replica, plan: Plan, now_ms: int) -> None:
        if self.state.owner is not None:
            self.state.role = "retiring"
            self.candidate.roll_over(plan, self.state.tail.queued, now_ms)
        self._finish_step(now_ms)

    return [(Replica, "roll_over", roll_over)]


def end_of_before_sync_ahead() -> Replacements:
    """A planned end is where the log ended when the replicas were asked to sync ahead."""
    roll_over = Replica.roll_over
    ends: dict[int, Position] = {}

    def planned(self: Replica, plan: Plan, now_ms: int) -> None:
        if not self.moving:
            ends[id(self)] = self.state.tail.queued
        roll_over(self, plan, now_ms)

    def propose(self: Replica, plan: Plan, now_ms: int) -> None:
        if self.can_append:
            self._retire()
            self.candidate.roll_over(plan, ends[id(self)], now_ms)

    return [(Replica, "roll_over", planned), (Replica, "_propose", propose)]


def sync_ahead_is_enough() -> Replacements:
    """Batches that were synced ahead are not synced again when the end is accepted."""
    synced_ahead, accept = Replica.synced_ahead, Acceptor._accept
    synced: dict[int, int] = {}

    def noted(self: Replica, effect: SyncAhead, now_ms: int) -> None:
        synced[id(self.state)] = effect.epoch
        synced_ahead(self, effect, now_ms)

    def accepted(self: Acceptor, sender: str, ask: pb.OpenEpoch, reply: pb.OpenEpochReply, now_ms: int) -> None:
        is_synced = synced.get(id(self._state)) == ask.epoch
        with patch.object(ReplicaState, "syncs_appends", is_synced or self._state.syncs_appends):
            accept(self, sender, ask, reply, now_ms)

    return [(Replica, "synced_ahead", noted), (Acceptor, "_accept", accepted)]


def fence_dropped_before_decision() -> Replacements:
    """Entering the next epoch, its fence replaces the old one before the decision is journalled."""
    original = ReplicaState.write
    held: dict[int, list[tuple[Any, Any]]] = {}

    def write(self: ReplicaState, effect: Any, then: Any = None) -> None:
        if isinstance(effect, WriteChain):
            held.setdefault(id(self), []).append((effect, then))
            return
        original(self, effect, then)
        if isinstance(effect, WriteFences):
            for waiting in held.pop(id(self), []):
                original(self, *waiting)

    return [(ReplicaState, "write", write)]


def quorum_of_the_living() -> Replacements:
    """Nodes that seem dead do not count."""

    def living(self: Candidate) -> int:
        active = self._state.active
        return sum(self._state.cluster_hints.alive(node) for node in active.placement)

    def quorum(self: Candidate) -> int:
        return min(paxos.seal_quorum(self.replicas, self._state.active.ack_quorum), living(self))

    original = Candidate.on_open_reply

    def on_open_reply(self: Candidate, sender: str, reply: pb.OpenEpochReply, now_ms: int) -> None:
        original(self, sender, reply, now_ms)
        if self.phase == "opening" and self._accepted and len(self._accepted) >= living(self):
            self._host.decided(self._value)

    any_number = lambda replicas, ack_quorum: 1  # noqa: E731
    return [
        (Candidate, "seal_quorum", property(quorum)),
        (Candidate, "on_open_reply", on_open_reply),
        (candidate, "choose_value", _with_quorum(any_number)),
    ]


def _with_quorum(quorum: Any) -> Any:
    def choose(promises: Sequence[Promise], **rest: Any) -> bytes:
        with patch.object(paxos, "seal_quorum", quorum):
            return paxos.choose_value(promises, **rest)

    return choose


def membership_decides() -> Replacements:
    """The first live node takes over alone, at the end of its own log."""

    def pre_vote(self: Candidate, now_ms: int) -> None:
        host: Any = self._host
        state = host.state
        plan = state.cluster_hints.plan(state.key, state.active)
        value = paxos.decision_value(
            state.active, state.tail.durable, state.chain.previous_hash, plan, self._owner_incarnation(plan)
        )
        host.decided(value)

    return [(Candidate, "_pre_vote", pre_vote)]


def accept_answered_early() -> Replacements:
    """An accept is answered while it is on its way to the disk."""

    def accept(self: Acceptor, sender: str, ask: pb.OpenEpoch, reply: pb.OpenEpochReply, now_ms: int) -> None:
        state, fence = self._state, self._state.fence
        assert fence is not None
        self._on_promise(now_ms)
        state.send(sender, state.about(reply, ask.epoch))
        state.write(WriteFences([fence.accept(ask.ballot, ask.value)]))

    return [(Acceptor, "_accept", accept)]


def promise_answered_early() -> Replacements:
    """A promise is answered, with the end of the log, while it is on its way to the disk."""
    original = Acceptor.on_seal

    def on_seal(self: Acceptor, sender: str, ask: pb.Seal, now_ms: int) -> None:
        state = self._state
        real = state.write

        def write(effect: Any, then: Any = None) -> None:
            real(effect)
            if then is not None:
                then(True, now_ms)

        with patch.object(state, "write", write):
            original(self, sender, ask, now_ms)

    return [(Acceptor, "on_seal", on_seal)]


def accepted_is_decided() -> Replacements:
    """A value that some replica has accepted is taken for the decision."""
    original = Candidate.on_seal_reply

    def on_seal_reply(self: Candidate, sender: str, reply: pb.SealReply, now_ms: int) -> None:
        if self.phase == "sealing" and reply.status == pb.HELD and reply.accepted_value:
            self._host.decided(reply.accepted_value)
        else:
            original(self, sender, reply, now_ms)

    return [(Candidate, "on_seal_reply", on_seal_reply)]


def decides_by_the_next_quorum() -> Replacements:
    """An end is decided by the quorum of the next epoch, if that is smaller."""
    original = Candidate.on_open_reply

    def on_open_reply(self: Candidate, sender: str, reply: pb.OpenEpochReply, now_ms: int) -> None:
        original(self, sender, reply, now_ms)
        if self.phase == "opening" and sender in self._accepted:
            following = pb.EpochDecision.FromString(self._value).next
            if len(self._accepted) >= following.ack_quorum:
                self._host.decided(self._value)

    return [(Candidate, "on_open_reply", on_open_reply)]


def seal_end_before_the_appends() -> Replacements:
    """SEAL is answered with the durable end at its arrival, ignoring writes in progress."""
    original, write, send = Acceptor.on_seal, ReplicaState.write, ReplicaState.send

    def on_seal(self: Acceptor, sender: str, ask: pb.Seal, now_ms: int) -> None:
        end = self._state.tail.durable

        def send_early(state: ReplicaState, to: str, message: Any, batches: Any = ()) -> None:
            if isinstance(message, pb.SealReply) and message.status == pb.HELD:
                message.end_offset, message.end_digest = end
            send(state, to, message, batches)

        def write_then(state: ReplicaState, effect: Any, then: Any) -> None:
            def written(ok: bool, later_ms: int) -> None:
                with patch.object(ReplicaState, "send", send_early):
                    then(ok, later_ms)

            write(state, effect, written)

        with patch.object(ReplicaState, "write", write_then):
            original(self, sender, ask, now_ms)

    return [(Acceptor, "on_seal", on_seal)]
