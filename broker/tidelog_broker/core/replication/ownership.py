"""Ownership of an epoch: recovery of producer state, then replication of appends.

A node that a decision names as the owner is *opening* at first: it must not assign offsets before it knows the producer
state at the end of the previous epoch, on which exactly-once delivery depends. A complete local log, or snapshots of
its deleted parts, contain that state; otherwise the other replicas are asked, and the local log again once it is
complete. If no node has the complete state, the most complete one is used and the rest is lost. If the previous
decision reports lost records, the new owner then fills their offsets with batches without records, so that no other
record gets them (ADR 0189). After that `epoch_writer` assigns offsets and `PushWindow` replicates to the followers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tidelog_broker.core.replication.effects import LaterSnapshot, OwnerConfirmed, OwnerReady, RebuildProducers
from tidelog_broker.core.replication.epoch_writer import Follower, Group, OffsetAssigner, PushWindow
from tidelog_broker.core.replication.lost_offsets import Filling, filling
from tidelog_broker.core.replication.peer_fetch import PeerFetch
from tidelog_broker.core.replication.ports import Batch, Plan, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import ReplicaState
from tidelog_proto import broker_pb2 as pb

CONFIRMATION: Final = 1 << 63
"""Flag in the attempt number of a PRE_VOTE by which an owner confirms that its epoch is still open."""

CONFIRMATIONS_MAX: Final = 16
"""Maximum number of pending confirmations. Beyond it the oldest is dropped, because an answer to a later one also
confirms it."""


class _Recovered(NamedTuple):
    """The producer state with which this node opens the epoch, and whether it comes from the local log."""

    table: ProducerTable
    is_logged: bool


class Ownership:
    """The owner role of one replica: opens the epoch, assigns offsets, replicates, and resigns if it is halted."""

    def __init__(
        self,
        state: ReplicaState,
        *,
        contested: Callable[[int], None],
        resigned: Callable[[int], None],
        noted: Callable[[str, int], None],
        others_are_asked: Callable[[], bool],
    ) -> None:
        """Create the owner role of a replica, which is inactive until `begin` or `begin_first`.

        Args:
            state: the state of the replica.
            contested: called when a replica reports that it has promised another ballot.
            resigned: called when another node, the owner of the epoch, reports that it resigns.
            noted: called with a follower and the delete offset that it has stored.
            others_are_asked: returns whether another node may still report producer state, see `ProducerStateFetch`.
        """
        self._state = state
        self._contested = contested
        self._resigned = resigned
        self._noted = noted
        self._others_are_asked = others_are_asked
        self._resign_ms = 0
        self._resign_again_ms = state.timing.resend_ms
        self._informed_nodes: set[str] = set()
        """Nodes that have reported to this resigned owner how its epoch ended."""
        self._pushes: PushWindow | None = None
        self._producers_fetch: PeerFetch | None = None
        self._best_state: ProducerTable | None = None
        """Most complete producer state so far, while other nodes are asked."""
        self._recovered: _Recovered | None = None
        """Set while the offsets of lost records are being filled."""
        self._filling = Filling([], [])
        """The batches that fill the offsets of lost records."""
        self._fill_ms = 0
        self._confirmations = 0
        self._confirming: dict[int, set[str]] = {}

    @property
    def followers(self) -> Sequence[Follower]:
        """The followers of this owner; empty on other nodes."""
        return list(self._pushes.followers.values()) if self._pushes is not None else []

    @property
    def held_by_all(self) -> int:
        """End of the records that are durable on every replica of the active epoch; 0 if this is not its owner."""
        return self._state.owner.held_by_all if self._state.owner is not None else 0

    def deadline_ms(self) -> int | None:
        """Return the time in ms when `tick` has to be called; None if no timer is running."""
        state = self._state
        if self._is_resigning:
            return self._resign_ms if self._uninformed_nodes() else None
        deadlines = [self._producers_fetch.deadline_ms] if self._producers_fetch is not None else []
        if self._recovered is not None:
            deadlines.append(self._fill_ms)
        if self._pushes is not None and state.may_acknowledge:
            end, commit = state.tail.queued.offset, state.high_watermark
            if not self._pushes.quiet(end, commit):
                deadlines.append(self._pushes.deadline_ms(end, commit=commit, alive=self._living()))
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)

    def tick(self, now_ms: int) -> None:
        """Repeat producer requests and the filling of lost offsets; send due heartbeats, or the resignation."""
        if self._is_resigning:
            self._resign(now_ms)
            return
        if self._producers_fetch is not None and self._producers_fetch.overdue(now_ms):
            self._ask_producers(now_ms)
        if self._recovered is not None and now_ms >= self._fill_ms:
            self._fill(now_ms)
        self._heartbeats(now_ms)

    def liveness_changed(self, now_ms: int) -> None:
        """Make a heartbeat to each follower due, because one of them may have returned and lack the commit offset."""
        for follower in self.followers:
            follower.answered = False
            follower.next_heartbeat_ms = min(follower.next_heartbeat_ms, now_ms)

    def greet(self, node_id: str, now_ms: int) -> None:
        """Make a heartbeat due to a replica that asks whether this owner is alive."""
        follower = self._pushes.followers.get(node_id) if self._pushes is not None else None
        if follower is not None:
            follower.answered = False
            follower.next_heartbeat_ms = min(follower.next_heartbeat_ms, now_ms)

    # --- resignation -----------------------------------------------------------------------------------

    @property
    def _is_resigning(self) -> bool:
        """Whether this incarnation owns the epoch but is halted, and other replicas exist that can take over."""
        state = self._state
        active = state.chain.active
        if state.halted is None or len(active.placement) == 1:
            return False
        return (active.owner, active.owner_incarnation) == (state.node_id, state.incarnation)

    def _resign(self, now_ms: int) -> None:
        """Announce the resignation to the other replicas, with exponential back-off; this node has no vote."""
        state = self._state
        if now_ms < self._resign_ms:
            return
        self._resign_ms = now_ms + self._resign_again_ms
        self._resign_again_ms = min(2 * self._resign_again_ms, state.timing.back_off_ms_max)
        for node in self._uninformed_nodes():
            resignation = pb.ReplicationAck(owner_incarnation=state.incarnation, status=pb.IN_LIMBO)
            state.send(node, state.about(resignation, state.active.epoch))

    def _uninformed_nodes(self) -> list[str]:
        state = self._state
        return [node for node in state.active.placement if node != state.node_id and node not in self._informed_nodes]

    def note_end(self, sender: str, update: pb.MetadataUpdate) -> None:
        """Record that the sender knows the decision, so that a halted owner stops announcing its resignation to it."""
        epoch = self._state.active.epoch
        if self._is_resigning and update.first_epoch <= epoch < update.first_epoch + len(update.decisions):
            self._informed_nodes.update({sender}.intersection(self._state.active.placement))

    # --- opening ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the owner role, because the epoch is decided."""
        self._state.owner = self._pushes = self._producers_fetch = self._best_state = None
        self._recovered = None
        self._filling = Filling([], [])
        self._confirming.clear()
        self._informed_nodes.clear()
        self._resign_ms = 0
        self._resign_again_ms = self._state.timing.resend_ms

    def begin(self) -> None:
        """Start opening: a decision names this incarnation, so recover the producer state of the previous epoch."""
        self._state.become("opening")
        self._rebuild()

    def on_log_complete(self) -> None:
        """Retry the recovery of producer state, because the local log or its stored producer state may be complete now.

        Called when no epoch is missing any more, when one counts as lost, and when a search for producer state ends.
        """
        if self._state.role == "opening" and self._state.halted is None:
            self._rebuild()

    def _rebuild(self) -> None:
        active = self._state.active
        self._state.emit(RebuildProducers(active.epoch - 1, active.start_offset))

    def begin_first(self, now_ms: int) -> None:
        """Open the first epoch of a new partition, which has no producers yet."""
        assert self._state.active.start_offset == 0
        self._open(ProducerTable(), 0, now_ms)

    def rebuilt(
        self,
        effect: RebuildProducers,
        table: ProducerTable | None,
        last_append_timestamp_us: int,
        now_ms: int,
        *,
        later: LaterSnapshot | None = None,
    ) -> None:
        """Open the epoch with the producer state from the local log, or send it to the node that asked for it.

        If the log lacks the state, an owner asks other nodes; without other nodes it opens with partial state or halts.
        """
        state, active = self._state, self._state.active
        if effect.to:
            reply = pb.BackfillReply(
                status=pb.HELD if table is not None else pb.NOT_HELD,
                base_offset=effect.offset,
                producers=table.snapshot() if table is not None else b"",
                append_timestamp_us=last_append_timestamp_us,
            )
            if later is not None:
                reply.status = pb.HELD
                reply.producers, reply.producers_epoch = later.payload, later.epoch
                reply.end_offset, reply.end_digest = later.offset, later.digest
            state.send(effect.to, state.about(reply, effect.epoch))
        elif state.role == "opening" and (active.epoch, active.start_offset) == (effect.epoch + 1, effect.offset):
            if table is not None and not table.known_from:
                self._open(table, last_append_timestamp_us, now_ms)
                return
            if table is not None:
                self._keep_best_state(table, last_append_timestamp_us)
            if self._producers_fetch is not None:
                self._open_partial_if_refused(now_ms)
                return  # other nodes are being asked already
            sources = [node for node in state.holders_of(effect.epoch) if node != state.node_id]
            if sources:
                self._producers_fetch = PeerFetch(state.key, effect.epoch, sources, state.timing, producers=True)
                self._ask_producers(now_ms)
            elif self._best_state is not None:
                self._forget(self._best_state, now_ms)
            else:
                state.halt(
                    "the log on this node lacks producer state and no other node has it; replace this node (--replace)"
                )

    def take_producers(self, sender: str, reply: pb.BackfillReply, now_ms: int) -> bool:
        """Open the epoch with another replica's producer state, or ask the next replica.

        Returns:
            False if the reply answers another request.
        """
        fetch = self._producers_fetch
        about_batches = reply.status == pb.HELD and reply.length > 0
        if fetch is None or about_batches or not fetch.expects(sender, reply, self._start()):
            return False
        table = ProducerTable.restore(reply.producers) if reply.status == pb.HELD else None
        if table is not None and not table.known_from:
            self._open(table, reply.append_timestamp_us, now_ms, is_logged=False)
            return True
        if table is not None:
            self._keep_best_state(table, reply.append_timestamp_us)
        fetch.declined(now_ms)
        self._open_partial_if_refused(now_ms)
        return True

    def _keep_best_state(self, table: ProducerTable, last_append_timestamp_us: int) -> None:
        """Keep the more complete state; a node's state is incomplete if it received its copy without some headers."""
        best = self._best_state
        last_us = max(last_append_timestamp_us, table.last_append_timestamp_us)
        last_us = max(last_us, best.last_append_timestamp_us if best is not None else 0)
        if best is None or table.known_from < best.known_from:
            best = self._best_state = table
        best.last_append_timestamp_us = last_us

    def _open_partial_if_refused(self, now_ms: int) -> None:
        """Open the epoch with the most complete producer state, once no other node can have a more complete one."""
        fetch, best = self._producers_fetch, self._best_state
        if fetch is None or best is None or self._others_are_asked():
            return
        if fetch.refused(self._state.cluster_hints.alive):
            self._forget(best, now_ms)

    def _forget(self, best: ProducerTable, now_ms: int) -> None:
        best.known_from = 0  # Unknown producers get an error and must restart.
        self._open(best, best.last_append_timestamp_us, now_ms, is_logged=False)

    def _ask_producers(self, now_ms: int) -> None:
        assert self._producers_fetch is not None
        self._state.send(self._producers_fetch.source, self._producers_fetch.ask(self._start(), now_ms))

    def _start(self) -> Position:
        return Position(self._state.active.start_offset, 0)

    def _open(
        self, table: ProducerTable, last_append_timestamp_us: int, now_ms: int, *, is_logged: bool = True
    ) -> None:
        state = self._state
        self._producers_fetch = self._best_state = None
        table.last_append_timestamp_us = max(table.last_append_timestamp_us, last_append_timestamp_us)
        if state.chain.lost_until <= state.tail.durable.offset:
            self._own(_Recovered(table, is_logged), now_ms)
            return
        is_filling, self._recovered = self._recovered is not None, _Recovered(table, is_logged)
        if not is_filling:
            self._fill(now_ms)

    def _fill(self, now_ms: int) -> None:
        """Append batches that fill the offsets of lost records; once they are durable, this node becomes the owner.

        Repeated every `Timing.peer_fetch_ms` while the disk has no space.
        """
        state, recovered = self._state, self._recovered
        assert recovered is not None
        self._fill_ms = now_ms + state.timing.peer_fetch_ms
        if state.promised or state.halted is not None or state.tail.queued.offset >= state.chain.lost_until:
            return
        self._filling = filling(
            state.active, state.tail.queued, state.chain.lost_until, recovered.table.last_append_timestamp_us
        )

        def written(now_ms: int) -> None:
            if self._recovered is not None and state.role == "opening":
                self._own(self._recovered, now_ms)

        state.queue_append(self._filling.batches, self._filling.ends, written)

    def _own(self, recovered: _Recovered, now_ms: int) -> None:
        """Become the owner: assign offsets after the filling batches, if any, which the followers receive first."""
        state, base = self._state, Position(self._state.active.start_offset, 0)
        self._recovered, filled = None, self._filling
        state.become("owner")
        state.owner = OffsetAssigner(state.active, producers=recovered.table, is_logged=recovered.is_logged)
        if len(state.active.placement) > 1:
            self._pushes = PushWindow.begin(state.key, state.active, state.timing, now_ms)
        if filled.batches:
            state.owner.continue_at(filled.ends[-1])
            if self._pushes is not None:
                commit, log_start = state.high_watermark, state.log_start
                send = self._pushes.add(
                    base, filled.ends[-1], filled.batches, commit=commit, log_start=log_start, now_ms=now_ms
                )
                state.emit(*([send] if send is not None else []))
            self._filling = Filling([], [])
            self._own_written(now_ms)
        state.emit(OwnerReady())
        self._heartbeats(now_ms)

    # --- confirmation ----------------------------------------------------------------------------------

    def confirm(self) -> int:
        """Ask the replicas whether a ballot is promised in this epoch; return the number of this question.

        A quorum of denials emits `OwnerConfirmed` with that number.

        Every seal quorum intersects every ack quorum, so no successor existed when the question was sent. An
        acknowledgement would not prove this: it may have waited in a socket while this process was paused.
        """
        state = self._state
        assert state.may_acknowledge
        self._confirmations += 1
        self._confirming[self._confirmations] = {state.node_id}
        if len(self._confirming) > CONFIRMATIONS_MAX:
            del self._confirming[min(self._confirming)]  # the answer to a later request confirms the earlier one, too
        for node in state.active.placement:
            if node != state.node_id:
                past = state.chain.previous_hash
                ask = pb.PreVote(attempt=CONFIRMATION | self._confirmations, previous_hash=past)
                state.send(node, state.about(ask, state.active.epoch))
        self._count_confirmations(self._confirmations)
        return self._confirmations

    def unless_confirmed(
        self, handle: Callable[[str, pb.PreVoteReply, int], None]
    ) -> Callable[[str, pb.PreVoteReply, int], None]:
        """Return a handler that processes answers to `confirm` and passes others to `handle`."""

        def on_reply(sender: str, reply: pb.PreVoteReply, now_ms: int) -> None:
            if reply.attempt & CONFIRMATION:
                self._on_confirmation(sender, reply)
            else:
                handle(sender, reply, now_ms)

        return on_reply

    def _on_confirmation(self, sender: str, reply: pb.PreVoteReply) -> None:
        state, number = self._state, reply.attempt & ~CONFIRMATION
        if number not in self._confirming or reply.epoch != state.active.epoch or not state.may_acknowledge:
            return
        if reply.status == pb.HELD and not reply.HasField("promised") and sender in state.active.placement:
            self._confirming[number].add(sender)
            self._count_confirmations(number)

    def _count_confirmations(self, number: int) -> None:
        if len(self._confirming[number]) >= self._state.active.ack_quorum:
            # An answer to this question covers earlier ones, too.
            self._confirming = {later: nodes for later, nodes in self._confirming.items() if later > number}
            self._state.emit(OwnerConfirmed(number))

    # --- replicating -----------------------------------------------------------------------------------

    def accept_group(self, batches: Sequence[Batch], *, now_us: int, now_ms: int) -> Group:
        """Assign offsets to verified batches, queue their append and their message to the followers; return the group.

        The batches of the group are not written or sent yet.
        """
        state = self._state
        assert state.owner is not None
        group = state.owner.assign(batches, now_us=now_us)
        if group.batches:
            base = state.tail.queued
            state.queue_append(group.batches, group.ends, self._own_written)
            if self._pushes is not None:
                commit, log_start = state.high_watermark, state.log_start
                send = self._pushes.add(
                    base, group.ends[-1], group.batches, commit=commit, log_start=log_start, now_ms=now_ms
                )
                if send is not None:
                    state.effects.append(send)
        state.only_replicated = True
        return group

    def _own_written(self, _now_ms: int) -> None:
        state = self._state
        if state.may_acknowledge and state.owner is not None:
            committed = state.owner.acknowledge(state.node_id, state.tail.durable.offset)
            if committed > state.high_watermark:
                state.raise_watermark(committed)
            state.only_replicated = True

    def on_ack(self, sender: str, ack: pb.ReplicationAck, now_ms: int) -> None:
        """Handle a `ReplicationAck`.

        An owner counts acknowledgements of its epoch and incarnation and ignores all others. FENCED means that the
        replica has promised another ballot; IN_LIMBO, sent by the owner to a replica, means that the owner resigns.
        """
        state = self._state
        if ack.epoch != state.chain.active.epoch and not state.is_current(sender, ack.epoch, now_ms):
            return
        if not state.may_acknowledge or self._pushes is None:
            self._on_owner_status(sender, ack, now_ms)
            return
        tail = state.tail
        if ack.owner_incarnation != state.incarnation or sender not in self._pushes.followers:
            return
        if ack.status == pb.FENCED:
            self._contested(now_ms)
        elif (
            ack.status == pb.HELD
            and ack.end_offset <= tail.queued.offset
            and (
                tail.queued == (ack.end_offset, ack.end_digest)
                or tail.digest_at(ack.end_offset, state.log) == ack.end_digest
            )
        ):
            if ack.deleting_below:
                self._pushes.noted(sender, ack.deleting_below)
                self._noted(sender, ack.deleting_below)
            self._pushes.acknowledged(sender, ack.end_offset, now_ms)
            assert state.owner is not None
            committed = state.owner.acknowledge(sender, ack.end_offset)
            if committed > state.high_watermark:
                state.raise_watermark(committed)
            state.only_replicated = not ack.deleting_below

    def _on_owner_status(self, sender: str, ack: pb.ReplicationAck, now_ms: int) -> None:
        active = self._state.active
        is_owner = sender != self._state.node_id and (sender, ack.owner_incarnation) == (
            active.owner,
            active.owner_incarnation,
        )
        if is_owner and ack.status == pb.IN_LIMBO:
            self._resigned(now_ms)

    def resume(self, node_id: str, from_offset: int, now_ms: int) -> bool:
        """Resume pushing to a replica, if the records that it lacks are in memory; return whether any were sent."""
        if self._pushes is None or not self._state.may_acknowledge:
            return False
        state = self._state
        sends = self._pushes.resume(
            node_id, from_offset, commit=state.high_watermark, log_start=state.log_start, now_ms=now_ms
        )
        state.emit(*(sends or ()))
        return bool(sends)

    @property
    def window_kept_bytes(self) -> int:
        """Memory of records kept for replicas that have not acknowledged them."""
        return self._pushes.recent_bytes if self._pushes is not None else 0

    def bound_window(self, window_bytes: int) -> None:
        """Limit the memory of the push window; replicas that lack earlier records must fetch them."""
        if self._pushes is not None:
            self._pushes.bound(window_bytes)

    def log_start_raised(self) -> None:
        """Send the new log start to the followers with the next append or heartbeat."""
        if self._pushes is not None:
            self._pushes.log_start = self._state.log_start

    def publish_deletion(self, deleting_below: int, deleted_below: int) -> None:
        """Send the proposed and the effective delete offset to the followers with the next append or heartbeat."""
        if self._pushes is not None:
            self._pushes.deleting_below, self._pushes.deleted_below = deleting_below, deleted_below

    def lacks_deleted_records(self, node_id: str, from_offset: int, now_ms: int) -> bool:
        """Return whether a replica asks for records that retention has deleted, so that it must join the next epoch.

        A request below an acknowledged offset may be a delayed one; if it is repeated without an acknowledgement, the
        replica has lost its copy.
        """
        log_start = self._state.log_start
        follower = self._pushes.followers.get(node_id) if self._pushes is not None else None
        if follower is None or from_offset >= log_start:
            return False
        if follower.held_offset < log_start:
            return True
        if follower.asks_again_ms is None:
            follower.asks_again_ms = now_ms
        return now_ms - follower.asks_again_ms >= self._state.timing.peer_fetch_ms

    def plan_next(self) -> Plan:
        """Return a plan of the next epoch with this node as the owner, if it is in the placement."""
        state = self._state
        plan = state.cluster_hints.plan(state.key, state.active)
        return replace(plan, owner=state.node_id) if state.node_id in plan.placement else plan

    def _heartbeats(self, now_ms: int) -> None:
        state = self._state
        if self._pushes is None or not state.may_acknowledge or state.halted is not None:
            return
        if not self._pushes.quiet(state.tail.queued.offset, state.high_watermark):
            state.emit(
                *self._pushes.heartbeats(
                    state.tail.queued,
                    commit=state.high_watermark,
                    log_start=state.log_start,
                    alive=self._living(),
                    now_ms=now_ms,
                )
            )

    def _living(self) -> list[str]:
        alive = self._state.cluster_hints.alive
        return [node for node in self._state.chain.active.placement if alive(node)]
