"""A replica of a partition on one node, in all its roles: follower, acceptor, candidate, owner.

A partition's log is a chain of epochs. The open epoch has one owner. Its other replicas are followers, which accept
only the next contiguous append of that owner, so every copy is a prefix of one log. If the owner fails, a `Candidate`
asks the epoch's own replicas to decide its end and its successor. A node that learns the decision journals it,
truncates its log to the end, and enters the next epoch. Messages about another epoch than the active one are not
processed; they only synchronize the chains of both nodes (`ReplicaState.is_current`).

The roles in the open epoch and their transitions are in the table `replica_state.ROLE_TRANSITIONS`.

The module is synchronous and free of I/O: the driver executes the `effects` and implements the `ports`.
Invariants are asserted at the end of every public step (`_finish_step`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from google.protobuf.message import DecodeError

from tidelog_broker.core.replication.acceptor import Acceptor, Opening
from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.candidate import Candidate
from tidelog_broker.core.replication.catch_up import CatchUp
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.chain_learner import ChainLearner
from tidelog_broker.core.replication.deletion import Deletion
from tidelog_broker.core.replication.effects import (
    Effect,
    EpochDecided,
    EpochFenced,
    LaterSnapshot,
    PeerMessage,
    ReadLog,
    RebuildProducers,
    Send,
    SyncAhead,
)
from tidelog_broker.core.replication.epoch_writer import Follower, Group, OffsetAssigner
from tidelog_broker.core.replication.open_epoch_repair import OpenEpochRepair
from tidelog_broker.core.replication.owner_failure import OwnerMonitor
from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.core.replication.planned_end import SYNC_AHEAD, PlannedEnd
from tidelog_broker.core.replication.ports import Batch, ClusterHints, LogView, Plan, Position, Timing
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import BrokenRunError, Doubt, LogTail, ReplicaState, check_run
from tidelog_broker.core.replication.source import Source
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Repair = Literal["fetched", "once ended", "none"]
"""How a damaged copy is repaired: fetched from other nodes now; fetched after its epoch has ended, which this node
initiates; or not repaired, because no other node has it, or its epoch is open and owned by another node."""

STALLED_MS = 300
"""Age of a takeover attempt after which another candidate may try."""


class Replica:
    """A replica of one partition in all its roles; see the module.

    Args:
        fence: the journaled fence of the active epoch; None if the journal has none.
        doubt: why the copy of the open epoch may lack acknowledged records, see `replica_state.Doubt`.
    """

    def __init__(
        self,
        key: PartitionKey,
        *,
        node_id: str,
        incarnation: int,
        chain: EpochChain,
        fence: pb.FenceEntry | None,
        log: LogView,
        cluster_hints: ClusterHints,
        now_ms: int,
        timing: Timing | None = None,
        doubt: Doubt = "",
    ) -> None:
        self.state = state = ReplicaState(
            key,
            node_id=node_id,
            incarnation=incarnation,
            chain=chain,
            log=log,
            cluster_hints=cluster_hints,
            timing=timing or Timing(),
            doubt=doubt,
            no_space=self._no_space,
        )
        self.candidate = Candidate(state, self)
        self.deletion = Deletion(state, tell=self._publish_deletion, acknowledge=self._acknowledge)
        self.ownership = Ownership(
            state,
            contested=self._contested,
            resigned=self._resigned,
            noted=self.deletion.on_ack,
            others_are_asked=lambda: self.backfill.producers.is_asking,
        )
        self.backfill = Backfill(state, whole=self.ownership.on_log_complete)
        self.catch_up = CatchUp(
            state, acknowledge=self._acknowledge, reopen=self._reopen, raise_log_start=self.backfill.raise_log_start
        )
        self._source = Source(state, incomplete=lambda: self.backfill.incomplete, resume=self.ownership.resume)
        self._acceptor = Acceptor(
            state, agrees=self.candidate.agrees, on_promise=self._stop_appending, fetch=self.catch_up.fetch_for
        )
        self._learner = ChainLearner(state, self.backfill, entered=self._enter)
        self._planned_end = PlannedEnd(state, propose=self._propose)
        self._open_epoch_repair = OpenEpochRepair(
            state,
            followers=lambda: self.followers,
            end=self._end_epoch,
            fetch=self.backfill.refetch,
        )
        self._watch = OwnerMonitor(state, now_ms)
        self._now_ms = now_ms
        self._promised_ms = now_ms
        """When this node last promised a ballot; for a promise from the journal, when this replica was created."""
        self._others_ms: int | None = None
        """The earliest deadline of all parts except `ownership`, or None; valid while `deadlines_known`."""
        self.deadlines_known = False
        """Whether `_others_ms` is current; cleared by every step that can change one of those deadlines."""
        self._handlers: dict[type[PeerMessage], Callable[[str, Any, int], None]] = {
            pb.ReplicationAck: self.ownership.on_ack,
            pb.PreVote: self._on_pre_vote,
            pb.PreVoteReply: self._for_candidate(self.ownership.unless_confirmed(self._on_pre_vote_reply)),
            pb.Seal: self._acceptor.on_seal,
            pb.SealReply: self._for_candidate(self.candidate.on_seal_reply),
            pb.OpenEpoch: self._acceptor.on_open,
            pb.OpenEpochReply: self._for_candidate(self.candidate.on_open_reply),
            pb.MetadataUpdate: self._on_update,
            pb.EpochStatus: self._learner.on_status,
            pb.Backfill: self._on_backfill,
        }
        self._load(fence, now_ms)
        self._finish_step(now_ms)

    # --- start -----------------------------------------------------------------------------------------

    def _load(self, stored: pb.FenceEntry | None, now_ms: int) -> None:
        self._learner.load(stored, now_ms)
        self.deletion.load()
        self._learner.look_for_missing_fronts(now_ms)
        if stored is None and self.state.log.newest_epoch() is None and self._is_founding_owner():
            self.ownership.begin_first(now_ms)

    def _is_founding_owner(self) -> bool:
        """Return whether this incarnation was named the first owner of a new partition.

        If this node never stored a fence, it has promised and appended nothing, so that no takeover is needed.
        """
        state, active = self.state, self.state.active
        is_named = (active.owner, active.owner_incarnation) == (state.node_id, state.incarnation)
        is_first = active.epoch == state.chain.genesis.epoch and active.start_offset == 0
        return is_named and is_first and state.halted is None

    # --- state -----------------------------------------------------------------------------------------

    @property
    def retiring(self) -> bool:
        """Whether this incarnation owns the active epoch but no longer appends to it."""
        return self.state.role == "retiring"

    @property
    def moving(self) -> bool:
        """Whether this incarnation owns the active epoch and is ending it, even if it still appends."""
        return self.retiring or (self._planned_end.is_waiting and self.can_append)

    @property
    def assigner(self) -> OffsetAssigner | None:
        """The owner's state of the active epoch while `accept_group` may be called on this node; None otherwise."""
        state = self.state
        fence = state.fence
        if state.role != "owner" or (fence is not None and fence.entry.HasField("promised")):
            return None
        return state.owner if state.halted is None else None

    @property
    def can_append(self) -> bool:
        """Whether `accept_group` may be called."""
        return self.assigner is not None

    @property
    def followers(self) -> Sequence[Follower]:
        """The followers of this owner; empty on other nodes."""
        return self.ownership.followers

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` has to be called; None if not before another input.

        At an owner, steps that only append or acknowledge change no deadline but that of `ownership`
        (`ReplicaState.only_replicated`); after any other step the other parts are asked again.
        """
        if not self.deadlines_known or self.state.role != "owner":
            others = (self.catch_up.deadline_ms, self.backfill.deadline_ms, self.candidate.deadline_ms)
            ending = (self._planned_end.deadline_ms, self._reconsider_ms(), self._open_epoch_repair.deadline_ms)
            self._others_ms = min((at_ms for at_ms in (*others, *ending) if at_ms is not None), default=None)
            self.deadlines_known = True
        own_ms, others_ms = self.ownership.deadline_ms(), self._others_ms
        if own_ms is None or others_ms is None:
            return others_ms if own_ms is None else own_ms
        return min(own_ms, others_ms)

    def take_effects(self) -> list[Effect]:
        """Return and clear the pending effects, in order."""
        effects, self.state.effects = self.state.effects, []
        return effects

    def suspects_owner(self, now_ms: int) -> bool:
        """Return whether the owner seems to have failed, which justifies a takeover attempt but does not permit it."""
        state = self.state
        active = state.active
        if not state.is_member or state.halted is not None:
            return False
        if state.promised:
            return now_ms >= self._promised_ms + STALLED_MS
        if self.retiring:
            return True
        if active.owner == state.node_id:
            restarted = active.owner_incarnation != state.incarnation
            return restarted and (len(active.placement) > 1 or self.candidate.eager)
        return self._watch.misses(now_ms)

    @property
    def owner_may_be_slow(self) -> bool:
        """Whether there is no evidence of the owner's failure, apart from a possible timeout."""
        given_up = self.state.promised or self.retiring or self.state.active.owner == self.state.node_id
        return not given_up and not self._watch.has_failure_evidence()

    def _reconsider_ms(self) -> int | None:
        """Return when a stalled takeover or the owner's silence will justify a takeover attempt.

        None if that depends on other input first, or this node cannot attempt a takeover now.
        """
        state = self.state
        fence = state.fence
        if fence is None or state.halted is not None or self.candidate.phase != "idle":
            return None
        if fence.entry.HasField("promised"):
            return self._promised_ms + STALLED_MS
        return self._watch.reconsider_ms() if state.chain.active.owner != state.node_id else None

    # --- inputs ----------------------------------------------------------------------------------------

    def receive(self, sender: str, message: PeerMessage, batches: Sequence[Batch], now_ms: int) -> bool:
        """Handle a message of another node; drop an invalid one, answer an outdated one with the chain.

        Returns:
            Whether `deadline_ms` may have become earlier; an append that only continues the log does not change it.
        """
        self._now_ms = now_ms
        may_be_due = True
        try:
            if isinstance(message, pb.AppendBatch):
                may_be_due = not self._on_append(sender, message, batches, now_ms)
            elif isinstance(message, pb.BackfillReply):
                self._on_backfill_reply(sender, message, batches, now_ms)
            else:
                self._handlers[type(message)](sender, message, now_ms)
        except (DecodeError, BrokenRunError):
            pass  # The message is invalid and ignored: none of its batches was accepted.
        self._finish_step(now_ms)
        return may_be_due

    def wrote(self, now_ms: int, *, ok: bool = True) -> None:
        """Complete the oldest pending write; if not `ok`, there was no disk space and nothing was written."""
        self._now_ms = now_ms
        self.state.waiting_writes.popleft()(ok, now_ms)
        self._finish_step(now_ms)

    def read(self, effect: ReadLog, batches: Sequence[memoryview], base: Position, end: Position, now_ms: int) -> None:
        """Send the batches that a `ReadLog` has read to the node that asked for them.

        Args:
            effect: the `ReadLog`.
            batches: whole batches from `base` to `end`; none if they are no longer in the log.
            base: the position before the first batch.
            end: the position after the last batch.
            now_ms: the current time.
        """
        status = pb.HELD if batches else pb.NOT_HELD
        self._source.reply(effect, batches, base, end, status)
        self._finish_step(now_ms)

    def synced_ahead(self, effect: SyncAhead, now_ms: int) -> None:
        """Continue the planned end after a `SyncAhead`, or answer the owner that asked for it."""
        if effect.to == self.state.node_id:
            self._planned_end.synced(effect.attempt, now_ms)
        elif effect.to:
            ask = pb.PreVote(attempt=effect.attempt, probe=True)
            self._acceptor.on_pre_vote(effect.to, self.state.about(ask, effect.epoch), now_ms)
        self._finish_step(now_ms)

    def tick(self, now_ms: int) -> None:
        """Run expired timers; may be called at any time."""
        self.candidate.consider(now_ms)
        self.candidate.tick(now_ms)
        self.catch_up.tick(now_ms)
        self.backfill.tick(now_ms)
        self.ownership.tick(now_ms)
        self._planned_end.tick(now_ms)
        self._open_epoch_repair.tick(now_ms)
        self._finish_step(now_ms)

    def compacted(self, now_ms: int) -> None:
        """Reconsider which epochs to fetch: compaction has replaced some by new versions."""
        self.backfill.go_on(now_ms)
        self._finish_step(now_ms)

    def liveness_changed(self, now_ms: int) -> None:
        """Reconsider ownership and deadlines after a change in the liveness of nodes."""
        self.ownership.liveness_changed(now_ms)
        self.tick(now_ms)

    def want_owner(self, now_ms: int) -> None:
        """Take over at once for a waiting producer, if the owner is an earlier incarnation of this node."""
        if self.state.role in {"outsider", "follower"}:
            self.candidate.eager = True
            self.tick(now_ms)

    # --- the owner -------------------------------------------------------------------------------------

    def accept_group(self, batches: Sequence[Batch], *, now_us: int, now_ms: int) -> Group:
        """Accept verified batches as the owner: one step of `Ownership.accept_group`; return the group."""
        assert self.assigner is not None
        group = self.ownership.accept_group(batches, now_us=now_us, now_ms=now_ms)
        self._finish_step(now_ms)
        return group

    def roll_over(self, plan: Plan, now_ms: int) -> None:
        """End this owner's epoch, proposing its end and successor in one round. No-op if this node cannot append.

        If the flush mode does not sync appends, the replicas first sync their logs; this owner continues to append
        meanwhile.
        """
        if self.can_append:
            self._planned_end.begin(plan, now_ms)
        self._finish_step(now_ms)

    def damaged(self, epoch: int, reason: str, now_ms: int) -> Repair:
        """Schedule the repair of damage in this node's copy of an epoch, and return how it will be repaired."""
        repair: Repair = "none"
        if self._open_epoch_repair.note(epoch, reason, now_ms):
            repair = "once ended"
        elif self.backfill.refetch(epoch, reason, now_ms):
            repair = "fetched"
        self._finish_step(now_ms)
        return repair

    def _end_epoch(self, now_ms: int) -> None:
        if not self.moving:
            self.roll_over(self.ownership.plan_next(), now_ms)

    def _propose(self, plan: Plan, now_ms: int) -> None:
        if self.can_append:
            self._retire()
            end, deleted_below = self.state.tail.queued, self.deletion.proposed
            self.candidate.roll_over(plan, end, now_ms, deleted_below=deleted_below)

    def _retire(self) -> None:
        self.state.become("retiring")
        self.state.emit(EpochFenced())

    def _contested(self, now_ms: int) -> None:
        """Stop owning: a replica has promised another ballot, so the epoch ends, even if its candidate has failed."""
        if self.state.role == "owner" and not self.state.promised:
            self._retire()
            self.candidate.consider(now_ms)

    # --- failure of the owner ----------------------------------------------------------------------------

    def _resigned(self, now_ms: int) -> None:
        """Consider a takeover after the owner's resignation."""
        self._watch.resigned()
        self.candidate.consider(now_ms)

    def _on_update(self, sender: str, update: pb.MetadataUpdate, now_ms: int) -> None:
        self.ownership.note_end(sender, update)
        self._learner.on_update(sender, update, now_ms)

    def _on_pre_vote(self, sender: str, ask: pb.PreVote, now_ms: int) -> None:
        if self._planned_end.takes(sender, ask):
            return
        if not ask.probe and ask.epoch == self.state.active.epoch:
            self.ownership.greet(sender, now_ms)
        self._acceptor.on_pre_vote(sender, ask, now_ms)

    def _on_pre_vote_reply(self, sender: str, reply: pb.PreVoteReply, now_ms: int) -> None:
        if reply.attempt & SYNC_AHEAD:
            self._planned_end.on_reply(sender, reply, now_ms)
            return
        if sender == self.state.active.owner and not reply.agrees:
            if reply.status == pb.HELD:
                self._watch.answered(now_ms)
            else:
                self._watch.resigned()
        self.candidate.on_pre_vote_reply(sender, reply, now_ms)

    # --- the follower ----------------------------------------------------------------------------------

    def _on_append(self, sender: str, append: pb.AppendBatch, batches: Sequence[Batch], now_ms: int) -> bool:
        """Append the owner's batches to the local log; return True if that certainly set no new deadline."""
        state = self.state
        active = state.active
        if append.epoch != active.epoch and not state.is_current(sender, append.epoch, now_ms):
            return False
        if (sender, append.owner_incarnation) != (active.owner, active.owner_incarnation):
            state.request_chain(sender, now_ms)  # An epoch has one owner, so the sender has another chain.
            return False
        fence = state.fence
        if fence is None:
            return False
        is_promised = fence.entry.HasField("promised")
        if is_promised or state.halted is not None:
            self._send_ack(pb.FENCED if is_promised else pb.IN_LIMBO)
            return False
        self._watch.heard_ms = now_ms
        is_plain = append.log_start_offset <= state.log_start and append.deleting_below <= state.deleted_below
        if not is_plain:
            self.deletion.heard(append)
            self.raise_log_start(append.log_start_offset, now_ms)
        state.note_commit(append.commit_offset)
        if append.acknowledged_offset > state.tail.durable.offset and not state.doubt:
            state.doubt = "damaged"  # The disk was rolled back, so promises may be lost, too.
        held = state.tail.queued
        if append.base_offset > held.offset or (state.doubt and state.doubt_ends is None):
            self.catch_up.begin(now_ms)
            return False
        if not self._agrees(append):
            state.halt(
                f"this node's copy of epoch {active.epoch} differs from the owner's below offset {append.end_offset}"
            )
            self._send_ack(pb.DIVERGED)
            return False
        fresh: list[Batch] = []
        content: list[memoryview] = []
        for batch in batches:
            if batch.header.base_offset >= held.offset:
                fresh.append(batch)
                content.append(batch.data)
        if fresh:
            if self.catch_up.waits_for_space(now_ms):
                return False
            positions = check_run(fresh, epoch=active.epoch, owner_incarnation=active.owner_incarnation, base=held)
            if self.catch_up.fetch is not None:
                self.catch_up.pushed()
            state.queue_append(content, positions, self._acknowledge)
        else:
            self._acknowledge(now_ms)
        return is_plain

    def raise_log_start(self, offset: int, now_ms: int) -> None:
        """Raise the log start to `offset`, below which retention has deleted records on the owner."""
        self.backfill.raise_log_start(offset, now_ms)
        self.ownership.log_start_raised()

    def delete_below(self, offset: int, now_ms: int) -> None:
        """Delete records below a committed offset, as the owner; `RecordsDeleted` reports when they are deleted."""
        if self.can_append:
            self.deletion.propose(offset)
        self._finish_step(now_ms)

    def _publish_deletion(self, deleting_below: int, deleted_below: int) -> None:
        self.ownership.publish_deletion(deleting_below, deleted_below)

    def _agrees(self, append: pb.AppendBatch) -> bool:
        """Return whether an append agrees with the local log where they overlap or meet."""
        tail, log, log_start = self.state.tail, self.state.log, self.state.log_start
        held = tail.queued
        if append.base_offset == held.offset < append.end_offset:  # the common case
            return append.previous_digest == held.digest or held.offset < log_start
        if append.base_offset >= log_start and tail.digest_at(append.base_offset, log) != append.previous_digest:
            return False
        if append.end_offset > held.offset or append.end_offset < log_start:
            return True
        return tail.digest_at(append.end_offset, log) == append.end_digest

    def _acknowledge(self, now_ms: int) -> None:
        """Acknowledge the durable end to the owner; never after a promise."""
        state = self.state
        del now_ms
        fence, owner = state.fence, state.chain.active.owner
        promised = fence is not None and fence.entry.HasField("promised")
        if not promised and state.halted is None and not state.doubt and owner != state.node_id:
            self._send_ack(pb.HELD)

    def _send_ack(self, status: pb.ReplicaStatus) -> None:
        active, durable = self.state.chain.active, self.state.tail.durable
        ack = pb.ReplicationAck(
            topic_id=self.state.key[0],
            partition=self.state.key[1],
            epoch=active.epoch,
            owner_incarnation=active.owner_incarnation,
            end_offset=durable.offset,
            end_digest=durable.digest,
            status=status,
            deleting_below=self.deletion.noted,
        )
        assert active.owner != self.state.node_id, "an owner does not acknowledge to itself"
        self.state.effects.append(Send((active.owner,), ack))

    def _stop_appending(self, now_ms: int) -> None:
        """Stop appending, because this node has promised a ballot.

        Queued appends are still written. Later records are fetched only if an OPEN_EPOCH needs them.
        """
        self._promised_ms = now_ms
        self.catch_up.stop()
        if self.state.role == "owner":
            self._retire()

    def _no_space(self, tail: LogTail, now_ms: int) -> None:
        """Drop a follower's append for lack of disk space.

        A heartbeat that arrives after `Timing.peer_fetch_ms` causes this node to fetch the records.
        """
        state = self.state
        assert state.owner is None or tail is not state.tail, "an owner reserves disk space before it assigns offsets"
        self.catch_up.no_space(now_ms)
        if tail is not state.tail and tail.durable.offset < state.decision(tail.epoch).end_offset:
            self.backfill.incomplete.add(tail.epoch)

    # --- the chain -------------------------------------------------------------------------------------

    def decided(self, decision: bytes) -> None:
        """Enter the next epoch by a decision with enough accepts, and send it to the replicas of both epochs."""
        old, first_epoch = self.state.active, self.state.active.epoch
        self._learner.learn(self.state.node_id, first_epoch, [decision])
        for node in dict.fromkeys([*old.placement, *self.state.active.placement]):
            self.state.send_chain(node, first_epoch)

    def _enter(self, value: pb.EpochDecision) -> None:
        state = self.state
        held_by_all = value.end_offset if self.candidate.accepted_by_all else self.ownership.held_by_all
        self.ownership.leave()
        state.enter()
        self.deletion.enter(value)
        self._planned_end.forget()
        self._open_epoch_repair.entered(self._now_ms)
        self._watch.entered(self._now_ms)
        self.catch_up.stop()
        self.candidate.reset()
        state.commit_known = 0
        state.emit(
            EpochDecided(
                value.epoch,
                value.end_offset,
                state.active.owner,
                value.unsafe,
                value.short_logs,
                min(held_by_all, value.end_offset),
                value.lost_until,
            )
        )
        state.commit_ends(value.end_offset, unsafe=value.unsafe)
        active = state.active
        if (active.owner, active.owner_incarnation) == (state.node_id, state.incarnation):
            self.ownership.begin()

    # --- producer state --------------------------------------------------------------------------------

    def producers_rebuilt(
        self,
        effect: RebuildProducers,
        table: ProducerTable | None,
        last_append_timestamp_us: int,
        now_ms: int,
        *,
        later: LaterSnapshot | None = None,
    ) -> None:
        """Pass on the result of a `RebuildProducers`.

        Args:
            effect: the `RebuildProducers`.
            table: the producer state; None if the local log has no state, or only the `later` one.
            last_append_timestamp_us: append timestamp of the last batch before the requested position; 0 if unknown.
            now_ms: the current time.
            later: a snapshot of a later position, if the request accepts one; None otherwise.
        """
        self.ownership.rebuilt(effect, table, last_append_timestamp_us, now_ms, later=later)
        self._finish_step(now_ms)

    def _on_backfill(self, sender: str, ask: pb.Backfill, now_ms: int) -> None:
        resumed = self._source.on_ask(sender, ask, now_ms)
        is_open = ask.epoch == self.state.active.epoch
        is_left = is_open and not resumed and self.ownership.lacks_deleted_records(sender, ask.from_offset, now_ms)
        if is_left:
            self._end_epoch(now_ms)

    def _on_backfill_reply(self, sender: str, reply: pb.BackfillReply, batches: Sequence[Batch], now_ms: int) -> None:
        if self.ownership.take_producers(sender, reply, now_ms):
            return
        if not self.catch_up.on_reply(sender, reply, batches, now_ms):
            self.backfill.on_reply(sender, reply, batches, now_ms)

    # --- internals -------------------------------------------------------------------------------------

    def _reopen(self, opening: Opening, now_ms: int) -> None:
        self._acceptor.on_open(opening.sender, opening.message, now_ms)

    def _for_candidate(self, handle: Callable[[str, Any, int], None]) -> Callable[[str, Any, int], None]:
        def on_reply(sender: str, reply: Any, now_ms: int) -> None:
            if self.state.is_current(sender, reply.epoch, now_ms):
                handle(sender, reply, now_ms)

        return on_reply

    def _finish_step(self, now_ms: int) -> None:
        """Handle the messages that this node has sent to itself, then check the invariants."""
        state = self.state
        self.deadlines_known = self.deadlines_known and state.only_replicated and not state.to_self
        state.only_replicated = False
        while state.to_self:
            message = state.to_self.popleft()
            if isinstance(message, pb.BackfillReply):
                self._on_backfill_reply(state.node_id, message, (), now_ms)
            else:
                self._handlers[type(message)](state.node_id, message, now_ms)
        tail, active, chain, owner = state.tail, state.chain.active, state.chain, state.owner
        queued, epoch = tail.queued.offset, active.epoch
        assert tail.epoch == epoch, "the tail must belong to the active epoch"
        assert chain.genesis.epoch + len(chain.decisions) == epoch, "the chain must be contiguous"
        assert tail.durable.offset <= queued
        assert state.high_watermark <= queued or state.high_watermark <= active.start_offset
        assert (state.fence is not None) == state.is_member
        if owner is not None:
            assert (active.owner, active.owner_incarnation) == (state.node_id, state.incarnation)
            assert owner.next_offset == queued
