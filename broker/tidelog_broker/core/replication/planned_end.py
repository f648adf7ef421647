"""The planned end of an epoch whose appends are not synced: the replicas sync ahead, then its owner proposes it.

A replica accepts an end only once its log is durable through it. With flush=never that may be a gigabyte, and the
owner's writers would be fenced while the disks write it. So the owner first asks the replicas, and itself, to sync what
they hold, and goes on appending meanwhile. What has come since is synced within the fence as ever: nothing is promised
or durable by what happens here, and whoever does not answer costs time only.

What was planned may be past before it is proposed. An end whose next owner has died, or has come to harm, or that no
quorum is there to decide, would fence the writers for nothing: it is dropped, and whoever planned it plans anew.

A round ends when this node, the next owner and a decide quorum have answered. Where one took long, much has come since,
so there is another one, a few at most: each has less to write, unless the writers are as fast as the disks.

The question is a PRE_VOTE that only asks whether somebody is there, with a bit set in its number: a node that knows
nothing of syncing ahead answers it at once. Rejected: a message of its own, which such a node would refuse; to have
followers sync all the time, which is what flush=never is there to avoid.
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
"""Set in the attempt number of a PRE_VOTE by which an owner asks its replicas to sync what they hold."""

SLACK_BYTES: Final = MIB
"""So little is not worth a sync of its own: a node that gives away a thousand partitions would do everything twice."""

ROUND_MS: Final = 50
"""What comes during a round that was no longer is synced within the fence."""

ROUNDS_MAX: Final = 4


class PlannedEnd:
    """Both sides of it, for one replica."""

    def __init__(self, state: ReplicaState, *, propose: Callable[[Plan, int], None]) -> None:
        """`propose` is called, once for a plan, when it is time to; it looks whether it is too late."""
        self._state = state
        self._propose = propose
        self._plan: Plan | None = None
        self._round = 0
        """The number of the newest question. None is used twice in the life of a process."""
        self._rounds_left = 0
        self._answered: set[str] = set()
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
        """When `tick` has something to do."""
        return self._wake_ms if self._plan is not None else None

    # --- the owner's side --------------------------------------------------------------------------------

    def begin(self, plan: Plan, now_ms: int) -> None:
        """End the epoch by `plan`: at once where nothing can be unsynced. It takes the place of an earlier plan."""
        state, is_waiting = self._state, self._plan is not None
        self._plan = plan
        if state.syncs_appends or state.tail.queued.offset == state.tail.start_offset:
            self._go(now_ms)
        elif is_waiting:
            self._consider(now_ms)
        else:
            self._limit_ms = now_ms + state.timing.sync_ahead_ms
            self._rounds_left = ROUNDS_MAX
            self._next_round(now_ms)

    def forget(self) -> None:
        """The epoch has ended, or is not to end like this."""
        self._plan = None

    def tick(self, now_ms: int) -> None:
        """Ask again, or wait no longer; drop a plan that names a dead owner, or that too few are there to decide."""
        if self._plan is None:
            return
        active = self._state.active
        living = [node for node in active.placement if self._is_there(node)]
        if not self._is_there(self._plan.owner) or len(living) < active.ack_quorum:
            self.forget()
        elif now_ms < self._wake_ms:
            return
        elif now_ms >= self._limit_ms:
            self._go(now_ms)
        else:
            self._ask(now_ms)

    def _is_there(self, node: str) -> bool:
        return node == self._state.node_id or self._state.surroundings.alive(node)

    def synced(self, attempt: int, now_ms: int) -> None:
        """This node's own log is synced ahead."""
        self._answer(self._state.node_id, attempt, now_ms)

    def on_reply(self, sender: str, reply: pb.PreVoteReply, now_ms: int) -> None:
        """Count who has synced ahead, of those that can accept; one that cannot is not to be the next owner either."""
        if sender not in self._state.active.placement:
            return
        if reply.status == pb.HELD:
            self._answer(sender, reply.attempt, now_ms)
        elif self._plan is not None and sender == self._plan.owner:
            self.forget()

    def _answer(self, node: str, attempt: int, now_ms: int) -> None:
        if self._plan is not None and attempt == SYNC_AHEAD | self._round:
            self._answered.add(node)
            self._consider(now_ms)

    def _consider(self, now_ms: int) -> None:
        """Go on once those have answered whose accepts are waited for, and who is to own the next epoch."""
        assert self._plan is not None
        active = self._state.active
        needed = {self._state.node_id, self._plan.owner}.intersection(active.placement)
        if not needed <= self._answered or len(self._answered) < active.ack_quorum:
            return
        if self._rounds_left and now_ms - self._began_ms > ROUND_MS:
            self._next_round(now_ms)
        else:
            self._go(now_ms)

    def _next_round(self, now_ms: int) -> None:
        state = self._state
        self._round += 1
        self._rounds_left -= 1
        self._answered.clear()
        self._began_ms = now_ms
        self._resend_ms = state.timing.resend_ms
        state.emit(SyncAhead(state.active.epoch, state.node_id, SYNC_AHEAD | self._round, SLACK_BYTES))
        self._ask(now_ms)

    def _ask(self, now_ms: int) -> None:
        """Ask who has not answered, at growing distances: a sync may take seconds, and is asked for once or twice."""
        state = self._state
        self._wake_ms = min(now_ms + self._resend_ms, self._limit_ms)
        self._resend_ms *= 2
        for node in state.active.placement:
            if node != state.node_id and node not in self._answered:
                ask = pb.PreVote(attempt=SYNC_AHEAD | self._round, probe=True)
                state.send(node, state.about(ask, state.active.epoch))

    def _go(self, now_ms: int) -> None:
        assert self._plan is not None
        plan, self._plan = self._plan, None
        self._propose(plan, now_ms)

    # --- the other replicas' side ------------------------------------------------------------------------

    def takes(self, sender: str, ask: pb.PreVote) -> bool:
        """Take an owner's question, which is answered when this log is synced ahead; False for any other."""
        state, active = self._state, self._state.active
        is_asked = ask.probe and ask.attempt & SYNC_AHEAD and (sender, ask.epoch) == (active.owner, active.epoch)
        if not is_asked or state.syncs_appends or not state.is_member:
            return False
        state.emit(SyncAhead(active.epoch, sender, ask.attempt, SLACK_BYTES))
        return True
