"""Learner of decisions: loads the chain of one replica at the start, and extends it.

A replica leaves an epoch in a fixed order: the decision is journaled; the copy is truncated to the decided end, marked
as incomplete, or set aside if its content differs; the fence of the next epoch is written and the old one dropped. A
crash between any two of these steps is completed by `load` at the next start; the steps and their completion are
therefore in this module. Rejected: completing them in the driver before the replica exists, which would need to know
about epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.chain import ChainError
from tidelog_broker.core.replication.effects import SetAside, SyncAhead, Truncate, WriteChain, WriteFences
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.replica_state import LogTail, ReplicaState, syncs_appends
from tidelog_proto import broker_pb2 as pb

_DIFFERS: Final = "this node's copy of epoch {} differs from the decided one"


class ChainLearner:
    """Loads and extends the chain of one replica; `entered` handles the consequences for this node's role."""

    def __init__(self, state: ReplicaState, backfill: Backfill, *, entered: Callable[[pb.EpochDecision], None]) -> None:
        """Create the learner of a replica.

        Args:
            entered: called with the decision once the next epoch is active and its writes are queued.
        """
        self._state = state
        self._backfill = backfill
        self._entered = entered
        self._frontless_epoch: int | None = None
        """The open epoch whose copy was found to lack its first records; fetched once its end is decided."""

    # --- start -----------------------------------------------------------------------------------------

    def load(self, stored: pb.FenceEntry | None, now_ms: int) -> None:
        """Load the replica from its log, completing the steps that a crash has interrupted, and fence the active epoch.

        Args:
            stored: the journaled fence of the active epoch; None if the journal has none.
        """
        state = self._state
        active, newest = state.active, state.log.newest_epoch()
        limbo = state.log.limbo()
        if limbo is not None:
            state.halt(limbo, permanently=True)
        state.log_start = state.log.log_start()
        if newest is not None and newest > active.epoch:
            reason = (
                f"the log holds epoch {newest}, but the chain ends at epoch {active.epoch}: the journal does not "
                "belong to this log; replace this node (--replace)"
            )
            state.halt(reason, permanently=True)
        end = state.log.epoch_end(active.epoch)
        if end is not None:
            state.tail = LogTail(active.epoch, active.start_offset, Position(*end))
        state.high_watermark = active.start_offset
        for epoch in range(state.chain.genesis.epoch, active.epoch):
            self._load_decided(epoch, is_newest=epoch == newest)
        if state.is_member:
            self._load_fence(stored)
        self._backfill.go_on(now_ms)
        unknown = state.log.epoch_without_producers()
        if unknown is not None:
            self._backfill.producers.want(unknown, now_ms)

    def look_for_missing_fronts(self, now_ms: int) -> None:
        """Fetch epochs that begin after records that were not deleted; call it when the delete offset is loaded.

        The open epoch has no other source than its owner, so it is fetched when its end is decided.
        """
        state, fronts = self._state, self._backfill.fronts
        for epoch in range(state.chain.genesis.epoch, state.active.epoch):
            if epoch not in self._backfill.incomplete:
                fronts.look(epoch, now_ms)
        active = state.active
        if state.is_member and state.halted is None and fronts.lacks(active.epoch):
            if list(active.placement) == [state.node_id]:
                fronts.halt(active.epoch)
            else:
                self._frontless_epoch = active.epoch

    def _load_decided(self, epoch: int, *, is_newest: bool) -> None:
        state = self._state
        decision, end = state.decision(epoch), state.log.epoch_end(epoch)
        is_gone = decision.end_offset <= max(state.start_of(epoch), state.log_start)
        if end is None or end[0] < decision.end_offset:
            if not is_gone:
                self._backfill.incomplete.add(epoch)
        elif end[0] == decision.end_offset and is_gone:
            return
        elif (decision.end_offset, state.log.digest_at(epoch, decision.end_offset)) not in state.ends_of(epoch):
            state.write(SetAside(epoch, _DIFFERS.format(epoch)))
            self._backfill.incomplete.add(epoch)
        elif end[0] > decision.end_offset:
            assert is_newest, "only the newest epoch of a log can extend beyond its decided end"
            state.write(Truncate(epoch, decision.end_offset))

    def _load_fence(self, stored: pb.FenceEntry | None) -> None:
        state, active = self._state, self._state.active
        state.fence = state.new_fence(stored)
        if stored is None or not stored.HasField("descriptor"):
            entries = [state.fence.opened()]
            if active.epoch > state.chain.genesis.epoch:
                entries.append(Fence(state.key, pb.EpochDescriptor(epoch=active.epoch - 1)).dropped())
            state.write(WriteFences(entries))

    # --- learning --------------------------------------------------------------------------------------

    def on_update(self, sender: str, update: pb.MetadataUpdate, now_ms: int) -> None:
        """Learn decisions sent by another node; request missing earlier ones, or further ones."""
        state = self._state
        if update.first_epoch > state.active.epoch:
            state.request_chain(sender, now_ms)
            return
        self.learn(sender, update.first_epoch, update.decisions)
        if len(update.decisions) > 1:
            state.request_chain(sender, now_ms)

    def on_status(self, sender: str, status: pb.EpochStatus, now_ms: int) -> None:
        """Compare another node's chain with this one: send or request missing decisions, or report a fork."""
        state = self._state
        if state.is_current(sender, status.epoch, now_ms) and status.previous_hash != state.chain.previous_hash:
            reason = f"node {sender!r} has other decisions about the epochs before {status.epoch}: the chains fork"
            state.forks(sender, status.epoch, reason)

    def learn(self, sender: str, first_epoch: int, decisions: Sequence[bytes]) -> None:
        """Extend the chain, unless this replica is halted permanently.

        Known decisions are skipped; different decisions about one epoch are a fork.
        """
        state = self._state
        for epoch, decision in enumerate(decisions if not state.halted_permanently else (), first_epoch):
            if epoch < state.active.epoch:
                if state.chain.decisions[epoch - state.chain.genesis.epoch] != decision:
                    state.differs(sender, epoch, pb.EpochDecision.FromString(decision))
                    return
                continue
            old = state.active
            try:
                value = state.extend_chain(decision)
            except ChainError as error:
                reason = f"a decision of node {sender!r} does not continue this node's chain: {error}"
                state.forks(sender, old.epoch, reason)
                return
            self._advance(old, value, decision)

    def _advance(self, old: pb.EpochDescriptor, value: pb.EpochDecision, decision: bytes) -> None:
        """Leave an epoch: journal its decision, truncate or complete the copy, then enter the next epoch."""
        state, backfill = self._state, self._backfill
        state.write(WriteChain([pb.ChainEntry(topic_id=state.key[0], partition=state.key[1], decision=decision)]))
        end, held = Position(value.end_offset, value.end_digest), state.tail.queued
        sound = state.halted is None
        whole = end.offset == old.start_offset or (
            sound and held.offset >= end.offset and state.tail.digest_at(end.offset, state.log) == end.digest
        )
        if not sound or (not whole and held.offset >= end.offset):
            state.write(SetAside(old.epoch, _DIFFERS.format(old.epoch)))
        elif held.offset > end.offset:
            state.write(Truncate(old.epoch, end.offset))
        if not whole:
            backfill.incomplete.add(old.epoch)
        left = state.fence
        is_synced = syncs_appends(old) or (left is not None and left.entry.accepted_value == decision)
        is_owed = whole and held.offset == end.offset > old.start_offset and not is_synced
        state.tail = LogTail(value.next.epoch, end.offset, Position(end.offset, 0))
        state.fence = state.new_fence() if state.is_member else None
        entries = [fence.opened() for fence in (state.fence,) if fence]
        entries += [fence.dropped() for fence in (left,) if fence]

        def entered(_ok: bool, now_ms: int) -> None:
            if is_owed:  # not a write, so that later appends do not wait for this sync
                state.emit(SyncAhead(old.epoch))
            backfill.go_on(now_ms)
            if old.epoch == self._frontless_epoch:
                backfill.fronts.look(old.epoch, now_ms)

        state.write(WriteFences(entries), entered)
        self._entered(value)
