"""Proposer of a takeover: a node that ends an epoch and opens the next one.

The phases of an attempt:

    idle ─owner missing─► waiting ─its turn─► pre-voting ─s agree─► sealing ─s promise─► opening ─q accept─► accepted
                             ▲                     │                   │                    │
                             └────── back-off ◄────┴── outbid, timeout ┴────────────────────┘

(s: a seal quorum of replicas, q: an ack quorum.) All transitions are listed in the table `PHASE_TRANSITIONS`, which the
code enforces.

Safety does not depend on which node takes over: any node of the placement may try at any time, and the quorums of the
epoch's replicas keep the decision unique. Gossip only determines which nodes try, in which order and how often. A
pre-vote prevents an isolated node from disturbing a healthy epoch (Raft's dissertation, section 9.6); exponential
back-off prevents candidates from outbidding each other repeatedly.

A planned roll-over starts in `opening`, at the ballot reserved for the owner: one value, proposed once, after which the
owner appends nothing. If it fails, a full takeover with a higher ballot follows.

In a recovery without a quorum an operator has confirmed that the other replicas will not return. The candidate seals as
usual, and if a quorum answers, the decision is an ordinary one. After the time limit of the sealing phase the longest
log among the answers determines the end, this node alone opens the next epoch, and the decision is marked unsafe. The
same applies if a seal quorum has promised but no quorum accepts, because unreachable replicas may have decided
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal, Protocol

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.fence import RESERVED_ROUND
from tidelog_broker.core.replication.paxos import (
    Promise,
    ballot_key,
    choose_value,
    decision_value,
    seal_quorum,
    without_undecided,
)
from tidelog_broker.core.replication.ports import ClusterHints, Plan, Position, Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Phase = Literal["idle", "waiting", "pre-voting", "sealing", "opening", "accepted"]
"""Phase of an attempt; see `PHASE_TRANSITIONS`."""

PHASE_TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    "idle": frozenset({"waiting", "sealing", "opening"}),
    "waiting": frozenset({"waiting", "idle", "pre-voting", "sealing"}),
    "pre-voting": frozenset({"pre-voting", "idle", "waiting", "sealing"}),
    "sealing": frozenset({"sealing", "waiting", "opening"}),
    "opening": frozenset({"waiting", "sealing", "accepted"}),
    "accepted": frozenset({"idle"}),
}
"""Allowed transitions between phases. A decision about the epoch, made by any node, returns to idle from every phase
(`reset`). The phases are:

    idle        no attempt; an unsafe recovery continues with sealing, an owner's planned end with opening
    waiting     until its rank's delay or a back-off ends; a node that has retired from its own epoch skips pre-voting
    pre-voting  asks the others whether they miss the owner, too; repeated if there is better evidence meanwhile
    sealing     has a ballot and collects promises
    opening     has a value and collects accepts; an unsafe recovery may return to sealing
    accepted    the value is decided: accepted by a quorum, or by this node in an unsafe recovery; other live replicas
                get a short time to accept, too
"""


class CandidateState(Protocol):
    """The part of a replica's state that its `Candidate` uses; `ReplicaState` implements it."""

    key: PartitionKey
    node_id: str
    incarnation: int
    chain: EpochChain
    cluster_hints: ClusterHints
    timing: Timing

    @property
    def active(self) -> pb.EpochDescriptor:
        """The active epoch, whose end is to be decided."""
        ...

    @property
    def is_volatile(self) -> bool:
        """Whether a restart of a replica loses its copy of the active epoch."""
        ...

    def send(self, to: str, message: PeerMessage) -> None:
        """Send a message to a node, which may be this one."""


class CandidateHost(Protocol):
    """The replica that a `Candidate` belongs to."""

    @property
    def retiring(self) -> bool:
        """Whether this node owns the epoch and has retired from it, so that no pre-vote is needed."""
        ...

    def suspects_owner(self, now_ms: int) -> bool:
        """Return whether the owner seems to have failed."""
        ...

    @property
    def owner_may_be_slow(self) -> bool:
        """Whether at most silence indicates the owner's failure, so that the owner gets time to answer a pre-vote."""
        ...

    def decided(self, decision: bytes) -> None:
        """Learn a decision that has enough accepts, and send it to the other nodes."""


class Candidate:
    """Runs this node's attempts to take over one partition, and its recoveries without a quorum."""

    def __init__(self, state: CandidateState, host: CandidateHost) -> None:
        self._state = state
        self._host = host
        self.phase: Phase = "idle"
        self._failures = 0
        self._attempt = 0
        self._highest_round = RESERVED_ROUND
        self._rank = 0
        self._resend_ms = 0
        self._wake_ms: int | None = None
        self._give_up_ms = 0
        self._is_late = False
        """Whether the current phase was extended once because this node woke up late."""
        self._started_ms = 0
        self._ballot = pb.Ballot()
        self._value = b""
        self._plan: Plan | None = None
        self._holders: list[str] = []
        self._answered_nodes: set[str] = set()
        self._agreeing_nodes: set[str] = set()
        self._refusing: set[str] = set()
        self._owner_was_slow = False
        """Whether silence was the only evidence of the owner's failure when the pre-vote was sent."""
        self._promises: dict[str, Promise] = {}
        self._short: set[str] = set()
        self._accepted: set[str] = set()
        self._unsafe_until_ms: int | None = None
        """Until when an unsafe recovery may try; None if no recovery is running."""
        self._is_unsafe = False
        """Whether an unsafe recovery proposed with the promises at hand, so that no quorum of accepts is needed."""
        self._was_undecided = False
        """Whether an earlier proposal of the unsafe recovery had a seal quorum of promises but too few accepts."""
        self._wants_all = False
        self.accepted_by_all = False
        """Whether all replicas accepted the latest decision, and so hold the log up to its end if it is not lost."""
        self.eager = False
        """Whether a producer waits, so that this node should replace its own earlier incarnation as the owner of a
        single copy."""

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no timer is running."""
        return self._wake_ms

    @property
    def replicas(self) -> int:
        """Number of replicas of the epoch."""
        return len(self._state.active.placement)

    @property
    def seal_quorum(self) -> int:
        """Number of promises that seal the epoch."""
        return seal_quorum(self.replicas, self._state.active.ack_quorum)

    # --- start -----------------------------------------------------------------------------------------

    def consider(self, now_ms: int) -> None:
        """Start an attempt if the owner is missing; abort or repeat a pre-vote if the evidence has changed.

        Answers to an earlier pre-vote are outdated once the owner is known to be dead, or alive. A node that was just
        started knows no live node and considers every owner failed. If the owner then fails, refusals that this node
        received before must not delay the takeover.
        """
        misses = self._host.suspects_owner(now_ms)
        if self.phase == "idle":
            if misses:
                self._wait(now_ms)
        elif self.phase == "pre-voting" and not misses:
            self._become_idle()
        elif self.phase == "pre-voting" and self._owner_was_slow and not self._host.owner_may_be_slow:
            self._pre_vote(now_ms)

    def _become(self, phase: Phase) -> None:
        assert phase in PHASE_TRANSITIONS[self.phase], f"a takeover attempt cannot change from {self.phase} to {phase}"
        self.phase = phase

    def _become_idle(self) -> None:
        self._become("idle")
        self._wake_ms = None

    def agrees(self, sender: str, now_ms: int) -> bool:
        """Return whether to agree to a pre-vote: this node considers the owner failed, and its own attempt yields."""
        return self._host.suspects_owner(now_ms) and self._yields_to(sender, now_ms)

    def _yields_to(self, sender: str, now_ms: int) -> bool:
        """Return whether this node's own attempt yields to another candidate.

        Two candidates that seal at once delay each other, and with many partitions each step may take longer than the
        delay between ranks. The first-ranked candidate therefore does not yield in its first attempt, while the others
        wait after they have agreed. Two candidates that both rank themselves first, because their views differ, refuse
        each other; then the lower node id wins.

        A candidate that has a quorum of agreement, and only waits for an answer of the silent owner, does not yield
        either. Two such candidates that yielded to each other would restart forever, and the silent owner would stay.

        Two candidates that ask each other at the same time, both after a failure, both yield, for a random time so that
        they do not meet again.
        """
        if sender == self._state.node_id or self.phase == "idle" or self._host.retiring:
            return True
        if self.phase == "pre-voting" and len(self._agreeing_nodes) >= self.seal_quorum:
            return False
        gives_in = sender in self._refusing and sender < self._state.node_id
        if self._rank == 0 and self._failures == 0 and not gives_in:
            return False
        if self.phase in {"waiting", "pre-voting"} and self._unsafe_until_ms is None:
            self._become("waiting")
            wait_ms = self._state.timing.yield_ms
            self._wake_ms = max(self._wake_ms or 0, now_ms + wait_ms + self._state.cluster_hints.random_ms(wait_ms))
        return True

    def reset(self) -> None:
        """Abandon the attempt, because the epoch was decided."""
        self.phase = "idle"
        self._wake_ms = None
        self._failures = 0
        self._highest_round = RESERVED_ROUND
        self._value = b""
        self._plan = None
        self._unsafe_until_ms = None
        self._is_unsafe = self._was_undecided = False
        self._wants_all = self.accepted_by_all = False
        self.eager = False

    def recover_unsafely(self, now_ms: int) -> None:
        """Start a recovery without a quorum on an operator's request; it has a time limit.

        If a quorum has accepted a value already, that is decided instead.
        """
        assert self._state.node_id in self._state.active.placement
        if self.phase == "accepted":
            self._decide()  # a quorum has accepted
            return
        self._unsafe_until_ms = now_ms + self._state.timing.unsafe_ms
        self._is_unsafe = self._was_undecided = False
        self._plan_next()
        self._seal(now_ms)

    def roll_over(self, plan: Plan, end: Position, now_ms: int, *, deleted_below: int = 0) -> None:
        """Propose the end of this owner's epoch and `plan` as its successor. Called once per epoch.

        Args:
            deleted_below: the delete offset that the decision has to carry.
        """
        assert self._state.active.owner == self._state.node_id
        self._plan = plan
        self._ballot = pb.Ballot(round=RESERVED_ROUND, node_id=self._state.node_id, incarnation=self._state.incarnation)
        self._value = decision_value(
            self._state.active,
            end,
            self._state.chain.previous_hash,
            plan,
            self._owner_incarnation(plan),
            deleted_below=deleted_below,
            lost_until=self._state.chain.lost_until,
        )
        self._holders = [self._state.node_id]
        self._open(now_ms)

    def wait_for_all(self) -> None:
        """Wait briefly for accepts of all replicas, because a publish with acks=all waits for them."""
        self._wants_all = True

    # --- timers ----------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Run the timer of the current phase, if it has expired."""
        if self._wake_ms is None or now_ms < self._wake_ms:
            return
        if self.phase == "accepted":
            self._decide()
            return
        if self._unsafe_until_ms is not None and now_ms >= self._unsafe_until_ms:
            self._unsafe_until_ms = None
            self._was_undecided = False
        if self.phase == "waiting":
            if self._unsafe_until_ms is not None:
                self._plan_next()
                self._seal(now_ms)
            elif not self._host.suspects_owner(now_ms):
                self._become_idle()
            elif self._host.retiring:
                self._plan_next()
                self._seal(now_ms)
            else:
                self._pre_vote(now_ms)
        elif now_ms - self._wake_ms >= self._state.timing.resend_ms and not self._is_late:
            # This node is overloaded: the answers may have arrived unread, and asking again would add to the load.
            self._is_late = True
            self._give_up_ms += now_ms - self._wake_ms
            self._wake_ms = now_ms + self._state.timing.resend_ms
        elif now_ms < self._give_up_ms:
            self._is_late = False
            self._ask_again(now_ms)
        elif self._unsafe_until_ms is not None and self.phase == "sealing" and self._state.node_id in self._promises:
            self._choose_unsafely(now_ms)
        elif (
            self.phase == "pre-voting"
            and len(self._agreeing_nodes) >= self.seal_quorum
            and self._host.suspects_owner(now_ms)
        ):
            self._seal(now_ms)  # The owner did not answer the pre-vote in time; only silence was reported about it.
        else:
            self._was_undecided |= self._unsafe_until_ms is not None and self.phase == "opening"
            self._back_off(now_ms)

    def _wait(self, now_ms: int, extra_ms: int = 0) -> None:
        self._rank = self._state.cluster_hints.rank(self._state.key, self._state.active)
        self._become("waiting")
        self._wake_ms = now_ms + self._rank * self._state.timing.rank_delay_ms + extra_ms
        if self._wake_ms == now_ms:
            self.tick(now_ms)

    def _back_off(self, now_ms: int) -> None:
        """Retry later, with exponential back-off and jitter.

        During an unsafe recovery the back-off does not grow: its time is limited, and other candidates yield to it.
        """
        self._failures += 1
        doublings = min(self._failures, 10) if self._unsafe_until_ms is None else 0
        ceiling_ms = min(self._state.timing.back_off_ms << doublings, self._state.timing.back_off_ms_max)
        self._wait(now_ms, ceiling_ms // 2 + self._state.cluster_hints.random_ms(ceiling_ms))

    def _enter(self, phase: Phase, last_ms: int, now_ms: int) -> None:
        self._become(phase)
        self._started_ms = now_ms
        self._give_up_ms = now_ms + last_ms
        self._is_late = False
        self._resend_ms = self._state.timing.resend_ms
        self._ask_again(now_ms)

    def _ask_again(self, now_ms: int) -> None:
        """Send the request of the phase to each node that has not answered it."""
        self._wake_ms = min(now_ms + self._resend_ms, self._give_up_ms)
        self._resend_ms *= 2  # answers take longer when many partitions ask at once
        active, past = self._state.active, self._state.chain.previous_hash
        phase = self.phase
        for node in active.placement:
            if phase == "pre-voting" and node not in self._agreeing_nodes:
                self._send(node, pb.PreVote(attempt=self._attempt, previous_hash=past))
            elif phase == "sealing" and node not in self._promises:
                self._send(node, pb.Seal(ballot=self._ballot, previous_hash=past))
            elif phase == "opening" and node not in self._accepted:
                self._send(node, pb.OpenEpoch(ballot=self._ballot, value=self._value, holders=self._holders))
        if phase in {"pre-voting", "sealing"} and self._plan is not None:
            for node in self._plan.placement:
                if node not in active.placement and node not in self._answered_nodes:
                    self._send(node, pb.PreVote(attempt=self._attempt, probe=True))

    def _send(self, to: str, message: pb.PreVote | pb.Seal | pb.OpenEpoch) -> None:
        message.topic_id, message.partition = self._state.key
        message.epoch = self._state.active.epoch
        self._state.send(to, message)

    # --- pre-vote --------------------------------------------------------------------------------------

    def _plan_next(self) -> None:
        """Start an attempt: clear the answers, and plan the successor from current liveness."""
        self._attempt += 1
        self._agreeing_nodes.clear()
        self._refusing.clear()
        self._answered_nodes.clear()
        self._plan = self._state.cluster_hints.plan(self._state.key, self._state.active)

    def _pre_vote(self, now_ms: int) -> None:
        self._plan_next()
        self._owner_was_slow = self._host.owner_may_be_slow
        self._enter("pre-voting", self._state.timing.pre_vote_ms, now_ms)

    def on_pre_vote_reply(self, sender: str, reply: pb.PreVoteReply, now_ms: int) -> None:
        """Count the replicas that agree, and the nodes that have answered at all."""
        if reply.attempt != self._attempt or self.phase not in {"pre-voting", "sealing"}:
            return
        self._highest_round = max(self._highest_round, reply.promised.round)
        if reply.status != pb.HELD:
            return
        self._answered_nodes.add(sender)
        if self.phase == "sealing":
            self._choose(now_ms)
            return
        if not reply.agrees:
            self._refusing.add(sender)
            self.consider(now_ms)  # the sender may be the owner
        elif sender in self._state.active.placement:
            self._refusing.discard(sender)
            self._agreeing_nodes.add(sender)
        is_gone = self._host.suspects_owner(now_ms) and not self._host.owner_may_be_slow
        if is_gone and len(self._agreeing_nodes) >= self.seal_quorum:
            self._seal(now_ms)

    # --- prepare ---------------------------------------------------------------------------------------

    def _seal(self, now_ms: int) -> None:
        self._ballot = pb.Ballot(
            round=self._highest_round + 1, node_id=self._state.node_id, incarnation=self._state.incarnation
        )
        self._highest_round += 1
        self._value = b""
        self._is_unsafe = False
        self._promises.clear()
        self._short.clear()
        self._enter("sealing", self._state.timing.seal_ms, now_ms)

    def on_seal_reply(self, sender: str, reply: pb.SealReply, now_ms: int) -> None:
        """Collect promises; a seal quorum of promises determines the value."""
        self._highest_round = max(self._highest_round, reply.promised.round)
        if self.phase != "sealing" or ballot_key(reply.ballot) != ballot_key(self._ballot):
            return
        if sender not in self._state.active.placement:
            return
        if reply.status == pb.FENCED:
            self._back_off(now_ms)
        elif reply.status == pb.HELD:
            self._answered_nodes.add(sender)
            self._promises[sender] = Promise(
                node_id=sender,
                end_offset=reply.end_offset,
                end_digest=reply.end_digest,
                accepted=reply.accepted if reply.HasField("accepted") else None,
                accepted_value=reply.accepted_value,
                deleting_below=reply.deleting_below,
                ceiling=reply.ceiling,
            )
            if reply.short_log:
                self._short.add(sender)
            self._choose(now_ms)

    @property
    def _whole(self) -> int:
        """Number of promises from replicas whose logs are certainly complete."""
        return len(self._promises) - len(self._short)

    def _choose(self, now_ms: int) -> None:
        """Propose once a seal quorum has promised and enough nodes of the successor epoch have answered."""
        if self.phase != "sealing" or (self._whole < self.seal_quorum and len(self._promises) < self.replicas):
            return
        if self._was_undecided and len(self._promises) < self._state.active.ack_quorum:
            return  # too few replicas to accept; retry when more have promised
        if self._state.is_volatile and self._lacks_accepted_log() and len(self._promises) < self.replicas:
            # Wait for all replicas: one without a promise may have the log of the accepted value, or have accepted
            # another value.
            return
        plan = self._successor()
        if plan is not None or any(promise.accepted_value for promise in self._promises.values()):
            self._propose(plan, now_ms)

    def _lacks_accepted_log(self) -> bool:
        """Return whether the logs of all promising replicas end before an accepted value's end.

        A replica accepts a value only with a complete log, so restarts have lost those logs.
        """
        promises = self._promises.values()
        ends = [
            pb.EpochDecision.FromString(promise.accepted_value).end_offset for promise in promises if promise.accepted
        ]
        return bool(ends) and max(promise.end_offset for promise in promises) < max(ends)

    def _choose_unsafely(self, now_ms: int) -> None:
        """Propose a value from the promises received so far, even if they are fewer than a quorum."""
        me = self._state.node_id
        self._is_unsafe = True
        active = self._state.active
        self._propose(Plan(me, (me,), 1, active.flush or pb.ALWAYS, engine=active.engine), now_ms)

    def _propose(self, plan: Plan | None, now_ms: int) -> None:
        promises = list(self._promises.values())
        if not self._is_unsafe and self._state.is_volatile and self._lacks_accepted_log():
            promises = without_undecided(promises, self._state.active.ack_quorum)
            if plan is None and not any(promise.accepted_value for promise in promises):
                return
        self._value = choose_value(
            promises,
            descriptor=self._state.active,
            previous_hash=self._state.chain.previous_hash,
            plan=plan,
            owner_incarnation=self._owner_incarnation(plan) if plan else 0,
            deleted_below=self._state.chain.deleted_below,
            unsafe=self._is_unsafe,
            short_logs=self._whole < self.seal_quorum,
            lost_until=self._state.chain.lost_until,
        )
        end_offset = pb.EpochDecision.FromString(self._value).end_offset
        self._holders = [promise.node_id for promise in promises if promise.end_offset >= end_offset]
        self._open(now_ms)

    def _successor(self) -> Plan | None:
        """Return the plan of the next epoch if enough of its nodes have answered to serve writes; None otherwise.

        If the planned owner has not answered, this node is the owner; None if it is not in the placement.
        """
        plan = self._plan
        assert plan is not None
        answered = self._answered_nodes | {self._state.node_id}
        needed = max(plan.ack_quorum, seal_quorum(len(plan.placement), plan.ack_quorum))
        if len(answered.intersection(plan.placement)) < needed:
            return None
        if plan.owner in answered:
            return plan
        if self._state.node_id in plan.placement:
            return replace(plan, owner=self._state.node_id)
        return None

    def _owner_incarnation(self, plan: Plan) -> int:
        if plan.owner == self._state.node_id:
            return self._state.incarnation
        return self._state.cluster_hints.incarnation(plan.owner)

    # --- accept ----------------------------------------------------------------------------------------

    def _open(self, now_ms: int) -> None:
        self._accepted.clear()
        self._enter("opening", self._state.timing.open_ms, now_ms)

    def on_open_reply(self, sender: str, reply: pb.OpenEpochReply, now_ms: int) -> None:
        """Count accepts; an ack quorum of them, or this node's own in an unsafe proposal, is the decision."""
        self._highest_round = max(self._highest_round, reply.promised.round)
        if self.phase not in {"opening", "accepted"} or ballot_key(reply.ballot) != ballot_key(self._ballot):
            return
        if sender not in self._state.active.placement:
            return
        if self.phase == "accepted" and reply.status != pb.HELD:
            return  # The value is decided already, so a refusal changes nothing.
        if reply.status == pb.FENCED:
            self._back_off(now_ms)
        elif reply.status == pb.FETCHING:
            latest_ms = self._started_ms + self._state.timing.fetch_ms
            self._give_up_ms = min(max(self._give_up_ms, now_ms + self._state.timing.open_ms), latest_ms)
        elif reply.status == pb.HELD:
            self._accepted.add(sender)
            is_enough = self._is_unsafe and self._state.node_id in self._accepted
            if is_enough or len(self._accepted) >= self._state.active.ack_quorum:
                self._decide_soon(now_ms)

    def _decide_soon(self, now_ms: int) -> None:
        """Complete the decision, after a short wait for accepts of the other live replicas if they are needed."""
        if self.phase == "opening":
            self._become("accepted")
            self._wake_ms = now_ms + self._state.timing.all_ms
        lacking = set(self._state.active.placement) - self._accepted
        if not self._wants_all or not any(map(self._state.cluster_hints.alive, lacking)):
            self._decide()

    def _decide(self) -> None:
        self._become_idle()
        self.accepted_by_all = self._accepted.issuperset(self._state.active.placement)
        self._host.decided(self._value)
