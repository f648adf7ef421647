"""Planned end of an epoch: where appends are not synced, the replicas sync ahead before the owner proposes the end.

A replica accepts an end only once its log is durable up to it. With flush=never this may require syncing a gigabyte
while producers are fenced. The owner therefore first asks the replicas, itself included, to sync what they hold, and
continues to append meanwhile. Later records are synced while the epoch is fenced, as usual. Syncing ahead guarantees
nothing, and a replica that does not answer only costs time.

A plan may be outdated before it is proposed. If its next owner has failed or is damaged, or no quorum is available,
proposing it would fence producers without benefit; the plan is dropped, and its initiator makes another one.

A round ends when this node, the next owner and a quorum have answered. If a round took long, many records have been
appended meanwhile, so another round follows, which usually has less to sync, up to `ROUNDS_MAX` rounds in total.

The request is a PRE_VOTE probe with a flag in its attempt number, so that older nodes answer it immediately. Rejected:
a separate message, which older nodes would refuse; continuous syncing by followers, which flush=never avoids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_broker.core.replication.effects import SyncAhead
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

SYNC_AHEAD: Final = 1 << 62
"""Flag in the attempt number of a PRE_VOTE by which an owner asks its replicas to sync ahead."""

SLACK_BYTES: Final = MIB
"""Unsynced bytes of a segment that do not justify a sync ahead: moving many small partitions must not double their
syncs."""

ROUND_MS: Final = 50
"""Rounds up to this duration are not repeated; later records are synced while the epoch is fenced."""

ROUNDS_MAX: Final = 4


class PlannedEnd:
    """Proposes planned ends of one replica's epoch, as the owner, and syncs ahead on request, as a follower."""

    def __init__(self, state: ReplicaState, *, propose: Callable[[Plan, int], None]) -> None:
        """Create the planned ends of a replica.

        Args:
            propose: proposes a plan; called at most once per plan, and checks whether the epoch can still be ended.
        """
        self._state = state
        self._propose = propose
        self._plan: Plan | None = None
        self._round = 0
        """Number of the newest request; unique within a process."""
        self._rounds_left = 0
        self._answered_nodes: set[str] = set()
        self._began_ms = 0
        self._limit_ms = 0
        self._wake_ms = 0
        self._resend_ms = 0

    @property
    def is_waiting(self) -> bool:
        """Whether an end is planned and not proposed yet."""
        return self._plan is not None

    @property
    def deadline_ms(self) -> int | None:
        """Time in ms when `tick` has to be called; None if no end is planned."""
        return self._wake_ms if self._plan is not None else None

    # --- the owner ---------------------------------------------------------------------------------------

    def begin(self, plan: Plan, now_ms: int) -> None:
        """Plan to end the epoch, replacing an earlier plan; propose it immediately if every append is synced."""
        state, is_waiting = self._state, self._plan is not None
        self._plan = plan
        if state.syncs_appends or state.tail.queued.offset == state.tail.start_offset:
            self._propose_plan(now_ms)
        elif is_waiting:
            self._consider(now_ms)
        else:
            self._limit_ms = now_ms + state.timing.sync_ahead_ms
            self._rounds_left = ROUNDS_MAX
            self._next_round(now_ms)

    def forget(self) -> None:
        """Drop the plan, because the epoch has ended, or should not end by this plan."""
        self._plan = None

    def tick(self, now_ms: int) -> None:
        """Repeat the request, or stop waiting; drop a plan whose owner or quorum is not alive."""
        if self._plan is None:
            return
        active = self._state.active
        living = [node for node in active.placement if self._is_alive(node)]
        if not self._is_alive(self._plan.owner) or len(living) < active.ack_quorum:
            self.forget()
        elif now_ms < self._wake_ms:
            return
        elif now_ms >= self._limit_ms:
            self._propose_plan(now_ms)
        else:
            self._ask(now_ms)

    def _is_alive(self, node: str) -> bool:
        return node == self._state.node_id or self._state.cluster_hints.alive(node)

    def synced(self, attempt: int, now_ms: int) -> None:
        """Record that this node's log is synced ahead."""
        self._answer(self._state.node_id, attempt, now_ms)

    def on_reply(self, sender: str, reply: pb.PreVoteReply, now_ms: int) -> None:
        """Count a replica that is synced ahead; drop the plan if its next owner is damaged."""
        if sender not in self._state.active.placement:
            return
        if reply.status == pb.HELD:
            self._answer(sender, reply.attempt, now_ms)
        elif self._plan is not None and sender == self._plan.owner:
            self.forget()

    def _answer(self, node: str, attempt: int, now_ms: int) -> None:
        if self._plan is not None and attempt == SYNC_AHEAD | self._round:
            self._answered_nodes.add(node)
            self._consider(now_ms)

    def _consider(self, now_ms: int) -> None:
        """Propose the end, or start another round, once the next owner and a quorum have answered."""
        assert self._plan is not None
        active = self._state.active
        needed = {self._state.node_id, self._plan.owner}.intersection(active.placement)
        if not needed <= self._answered_nodes or len(self._answered_nodes) < active.ack_quorum:
            return
        if self._rounds_left and now_ms - self._began_ms > ROUND_MS:
            self._next_round(now_ms)
        else:
            self._propose_plan(now_ms)

    def _next_round(self, now_ms: int) -> None:
        state = self._state
        self._round += 1
        self._rounds_left -= 1
        self._answered_nodes.clear()
        self._began_ms = now_ms
        self._resend_ms = state.timing.resend_ms
        state.emit(SyncAhead(state.active.epoch, state.node_id, SYNC_AHEAD | self._round, SLACK_BYTES))
        self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        """Repeat the request with exponential back-off, because a sync may take seconds."""
        state = self._state
        self._wake_ms = min(now_ms + self._resend_ms, self._limit_ms)
        self._resend_ms *= 2
        for node in state.active.placement:
            if node != state.node_id and node not in self._answered_nodes:
                ask = pb.PreVote(attempt=SYNC_AHEAD | self._round, probe=True)
                state.send(node, state.about(ask, state.active.epoch))

    def _propose_plan(self, now_ms: int) -> None:
        assert self._plan is not None
        plan, self._plan = self._plan, None
        self._propose(plan, now_ms)

    # --- followers ---------------------------------------------------------------------------------------

    def takes(self, sender: str, ask: pb.PreVote) -> bool:
        """Handle an owner's request to sync ahead, and answer it when that is done.

        Returns:
            False if the pre-vote is not such a request, or this log needs no sync; the caller then answers it.
        """
        state, active = self._state, self._state.active
        is_asked = ask.probe and ask.attempt & SYNC_AHEAD and (sender, ask.epoch) == (active.owner, active.epoch)
        if not is_asked or state.syncs_appends or not state.is_member:
            return False
        state.emit(SyncAhead(active.epoch, sender, ask.attempt, SLACK_BYTES))
        return True
