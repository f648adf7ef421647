"""The chain of one replica, as it is found at a start and as it grows: the learner's part of a takeover.

Whoever learns a decision leaves the epoch in one order: the decision is journalled, the copy is cut to its end (or
noted as incomplete, or set aside where it is something else), then the next epoch's fence is written and the old one
dropped. A stop between any two of these leaves what `load` finishes at the next start, so both are here. Rejected: that
the driver finishes it before there is a replica; it would have to know what an epoch is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_broker.core.replication.backfill import Backfill
from tidelog_broker.core.replication.chain import ChainError
from tidelog_broker.core.replication.effects import SetAside, SyncAhead, Truncate, WriteChain, WriteFences
from tidelog_broker.core.replication.fence import Fence
from tidelog_broker.core.replication.log_tail import Tail
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.replica_state import ReplicaState, syncs_appends
from tidelog_proto import broker_pb2 as pb


class Learning:
    """Takes up and extends the chain of one replica; what a decision makes of this node is left to `entered`."""

    def __init__(self, state: ReplicaState, backfill: Backfill, *, entered: Callable[[pb.EpochDecision], None]) -> None:
        """`entered` is called in the next epoch, with the decision that began it, after its writes were queued."""
        self._state = state
        self._backfill = backfill
        self._entered = entered

    # --- beginning -------------------------------------------------------------------------------------

    def load(self, stored: pb.FenceEntry | None, now_ms: int) -> None:
        """Take up what a stop left: finish what a decision asks for, fence what has been entered.

        `stored` is what the journal holds of the active epoch's fence.
        """
        state = self._state
        active, newest = state.active, state.log.newest_epoch()
        limbo = state.log.limbo()
        if limbo is not None:
            state.halt(limbo, for_good=True)
        state.log_start = state.log.log_start()
        if newest is not None and newest > active.epoch:
            reason = f"the log holds epoch {newest}, the chain ends at {active.epoch}: the journal is not this log's"
            state.halt(reason, for_good=True)
        end = state.log.epoch_end(active.epoch)
        if end is not None:
            state.tail = Tail(active.epoch, active.start_offset, Position(*end))
        state.high_watermark = active.start_offset
        for epoch in range(state.chain.genesis.epoch, active.epoch):
            self._load_decided(epoch, is_newest=epoch == newest)
        if state.is_member:
            self._load_fence(stored)
        self._backfill.go_on(now_ms)
        unknown = state.log.epoch_without_producers()
        if unknown is not None:
            self._backfill.producers.want(unknown, now_ms)

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
            state.write(SetAside(epoch, f"epoch {epoch} here is not what was decided"))
            self._backfill.incomplete.add(epoch)
        elif end[0] > decision.end_offset:
            assert is_newest, "only the newest epoch of a log can be longer than decided"
            state.write(Truncate(epoch, decision.end_offset))

    def _load_fence(self, stored: pb.FenceEntry | None) -> None:
        state, active = self._state, self._state.active
        state.fence = Fence(state.key, active, stored)
        if stored is None or not stored.HasField("descriptor"):
            entries = [state.fence.opened()]
            if active.epoch > state.chain.genesis.epoch:
                entries.append(Fence(state.key, pb.EpochDescriptor(epoch=active.epoch - 1)).dropped())
            state.write(WriteFences(entries))

    # --- learning --------------------------------------------------------------------------------------

    def on_update(self, sender: str, update: pb.MetadataUpdate, now_ms: int) -> None:
        """Take decisions that another node sends; ask it for those between, or for more behind them."""
        state = self._state
        if update.first_epoch > state.active.epoch:
            state.ask_chain(sender, now_ms)
            return
        self.learn(sender, update.first_epoch, update.decisions)
        if len(update.decisions) > 1:
            state.ask_chain(sender, now_ms)

    def on_status(self, sender: str, status: pb.EpochStatus, now_ms: int) -> None:
        """Hold another node's chain against this one; whoever is behind is helped."""
        state = self._state
        if state.is_current(sender, status.epoch, now_ms) and status.previous_hash != state.chain.previous_hash:
            state.forks(sender, status.epoch, f"{sender} knows another past of epoch {status.epoch}: the chains fork")

    def learn(self, sender: str, first_epoch: int, decisions: Sequence[bytes]) -> None:
        """Take decisions that continue the chain; the same ones again are fine, others under their numbers are not."""
        state = self._state
        for epoch, decision in enumerate(decisions if not state.halted_for_good else (), first_epoch):
            if epoch < state.active.epoch:
                if state.chain.decisions[epoch - state.chain.genesis.epoch] != decision:
                    state.differs(sender, epoch, pb.EpochDecision.FromString(decision))
                    return
                continue
            old = state.active
            try:
                value = state.extend_chain(decision)
            except ChainError as error:
                state.forks(sender, old.epoch, f"a decision does not continue the chain: {error}")
                return
            self._advance(old, value, decision)

    def _advance(self, old: pb.EpochDescriptor, value: pb.EpochDecision, decision: bytes) -> None:
        """Leave an epoch: journal its decision, cut or complete the copy, then enter the next, in this order."""
        state, backfill = self._state, self._backfill
        state.write(WriteChain([pb.ChainEntry(topic_id=state.key[0], partition=state.key[1], decision=decision)]))
        end, held = Position(value.end_offset, value.end_digest), state.tail.queued
        sound = state.halted is None
        whole = end.offset == old.start_offset or (
            sound and held.offset >= end.offset and state.tail.digest_at(end.offset, state.log) == end.digest
        )
        if not sound or (not whole and held.offset >= end.offset):
            state.write(SetAside(old.epoch, f"epoch {old.epoch} here is not what was decided"))
        elif held.offset > end.offset:
            state.write(Truncate(old.epoch, end.offset))
        if not whole:
            backfill.incomplete.add(old.epoch)
        left = state.fence
        is_synced = syncs_appends(old) or (left is not None and left.entry.accepted_value == decision)
        is_owed = whole and held.offset == end.offset > old.start_offset and not is_synced
        state.tail = Tail(value.next.epoch, end.offset, Position(end.offset, 0))
        state.fence = Fence(state.key, value.next) if state.is_member else None
        entries = [fence.opened() for fence in (state.fence,) if fence]
        entries += [fence.dropped() for fence in (left,) if fence]

        def entered(_ok: bool, now_ms: int) -> None:
            if is_owed:  # behind the appends that were on their way, and beside whatever comes now
                state.emit(SyncAhead(old.epoch))
            backfill.go_on(now_ms)

        state.write(WriteFences(entries), entered)
        self._entered(value)
