"""The driver of one partition's replica: executes its effects, with one write at a time.

After every input the driver takes the replica's effects. Messages are sent at once, before the node's own write, so
that the replicas write at the same time. Writes form one queue: each begins when the previous one is done, and
`Replica.wrote` reports each in order. Consecutive appends that were queued during a write are written as one and synced
once. Journal entries of all partitions are merged by `Chains`.

A write that needs no sync, is small and fits the allocated space runs on the event loop itself while that is fast (see
`log_writer.InlineWrites`); everything else runs on the partition's I/O worker.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from tidelog_broker.core.replication import sole_append
from tidelog_broker.core.replication.effects import (
    Append,
    AppendPartialCopy,
    CommitMoved,
    DropCopy,
    Effect,
    EpochDecided,
    EpochFenced,
    EpochLost,
    FinishPartialCopy,
    Halted,
    LaterSnapshot,
    OwnerConfirmed,
    OwnerReady,
    PeerMessage,
    ReadLog,
    RebuildProducers,
    RecordsDeleted,
    Send,
    SetAside,
    SyncAhead,
    Truncate,
    Write,
    WriteChain,
    WriteFences,
)
from tidelog_broker.core.replication.epoch_writer import Group
from tidelog_broker.core.replication.ports import Batch, Plan, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica import Repair, Replica
from tidelog_broker.core.replication.sole_append import SoleAppend
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.background_syncs import BackgroundSyncs
from tidelog_broker.replication.driver_ports import Listener, Tools
from tidelog_broker.replication.engine_tallies import EngineTally
from tidelog_broker.replication.log_writer import sleeps
from tidelog_broker.replication.replica_log import BatchRange, ReplicaLog
from tidelog_broker.storage.engine.store import EpochStore
from tidelog_broker.storage.io.errors import DamagedError, StorageError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX: Final = 32 * MIB
"""Maximum size of queued batches from other nodes. Beyond it appends of the owner are dropped; catch-up fetches these
batches later, at this node's pace."""


class _Queued(NamedTuple):
    """A queued write.

    Its callback is found by position: the n-th queued effect other than `RebuildProducers` belongs to the n-th entry of
    `ReplicaState.waiting_writes`.

    Attributes:
        size_bytes: size of its batches if another node sent them, which counts in the peers' budget; otherwise 0.
    """

    effect: Write | RebuildProducers
    size_bytes: int
    has_room: bool
    """Whether disk space for the write is allocated: an owner allocates before it assigns offsets."""


class ReplicaDriver:
    """Executes the effects of one replica: sends its messages, and does its writes.

    It is the one object that serializes the appends to a partition's log, whether a producer or another node sent the
    batches, and the replica's other writes. Nothing is executed before `start`.

    Args:
        schedule: called when the replica's deadline may have changed.
        schedule_later: called instead after frequent inputs, which do not move the deadline into the next heartbeat
            interval.
        owns: called when the replica begins to own an epoch.
    """

    def __init__(
        self,
        key: PartitionKey,
        name: str,
        io_key: int,
        *,
        replica: Replica,
        view: ReplicaLog,
        tools: Tools,
        schedule: Callable[[ReplicaDriver], None],
        schedule_later: Callable[[ReplicaDriver], None],
        owns: Callable[[ReplicaDriver], None],
    ) -> None:
        self.key = key
        self.name = name
        self.replica = replica
        self.view = view
        self.scheduled_ms: int | None = None
        """The time of the next scheduled tick; None if no tick is scheduled."""
        self.is_touched = False
        """Whether the replica's deadline is to be examined later, see `schedule_later`."""
        self.written_ms = 0
        """When the replica's log or a journal was last written for it; 0 before the first write."""
        self.stopped = False
        self.queued_bytes = 0
        """Size of the batches from other nodes that are not written yet."""
        self._io_key = io_key
        self._tools = tools
        self._schedule = schedule
        self._schedule_later = schedule_later
        self._owns = owns
        self._listener: Listener | None = None
        self._queue: deque[_Queued] = deque()
        self._cuts: deque[int] = deque()
        """Offsets of the queued truncations, in order."""
        self._writing = False
        self._executing = False
        self._may_be_due = False
        """Whether the effects being executed may move the deadline to an earlier time."""
        self._decisions_queued = 0
        self._synced = (-1, False)
        """The epoch of the newest append, and whether its appends are synced."""
        self._is_grouped = False
        """Whether that epoch is synced together with those of other partitions."""
        self._tally = EngineTally()
        """Counts the appends and syncs of that epoch's engine."""
        self._in_doubt = bool(view.doubt)
        self._ahead = BackgroundSyncs(tools.ahead, io_key, view, done=self._synced_ahead, failed=self._fail)

    @property
    def cut_offset(self) -> int | None:
        """Where the log is about to be truncated; None if it is not. Later records may have been decided otherwise.

        The watermark moves when a decision is known; the truncation happens later, when the write queue gets to it.
        """
        return min(self._cuts, default=None)

    @property
    def is_learning(self) -> bool:
        """Whether a decision is not in the journal yet, so that this node may not know it after a crash."""
        return self._decisions_queued > 0

    # --- inputs ----------------------------------------------------------------------------------------

    def start(self, listener: Listener) -> None:
        """Begin to execute effects, and to notify the listener."""
        self._listener = listener
        self.tick()  # Nodes that are already down cause no notification.

    def stop(self) -> None:
        """Drop queued writes and begin no others; a write in progress completes, but its completion is not reported."""
        self.stopped = True
        self._ahead.stop()
        self._queue.clear()
        self._count(-self.queued_bytes)

    def receive(self, sender: str, message: PeerMessage, batches: Sequence[Batch]) -> None:
        """Pass a message of another node to the replica; drop appends while more than `QUEUED_BYTES_MAX` is queued."""
        kind = type(message)
        if self.stopped or (kind is pb.AppendBatch and self.queued_bytes > QUEUED_BYTES_MAX):
            return
        may_be_due = self.replica.receive(sender, message, batches, self._tools.now_ms())
        if isinstance(message, pb.ReplicationAck):
            soon = message.status != pb.HELD
            if soon or self.replica.state.effects or not self.is_touched:
                self._execute(soon=soon)
            if self._listener is not None:
                self._listener.acknowledged()
        else:
            self._execute(soon=kind is not pb.AppendBatch, may_be_due=may_be_due)

    def tick(self) -> None:
        """Let the replica run its expired timers."""
        if not self.stopped:
            self.replica.tick(self._tools.now_ms())
            self.execute_effects()

    def liveness_changed(self) -> None:
        """Let the replica check again which nodes are alive."""
        if not self.stopped:
            self.replica.liveness_changed(self._tools.now_ms())
            self.execute_effects()

    def want_owner(self) -> None:
        """Request ownership, because a client wants to write."""
        if not self.stopped:
            self.replica.want_owner(self._tools.now_ms())
            self.execute_effects()

    def accept_group(self, batches: Sequence[Batch]) -> Group:
        """Have the replica assign offsets to verified batches, whose space is allocated, and queue their effects.

        The caller must call `execute_accepted` next, which sends and writes them, and must not start another group
        before this one is written.
        """
        return self.replica.accept_group(batches, now_us=self._tools.wall_us(), now_ms=self._tools.now_ms())

    def roll_over(self, plan: Plan) -> None:
        """End the epoch by plan, if this node owns it."""
        if not self.stopped:
            self.replica.roll_over(plan, self._tools.now_ms())
            self.execute_effects()

    def confirm(self) -> int:
        """Ask the replicas whether this node still owns the epoch, and return the number of the question.

        May be called only while this node may append. The caller must call `execute_effects` next, which sends the
        question; it needs the number before that, because `Listener.owner_confirmed` may report the answer at once.
        """
        return self.replica.ownership.confirm()

    def raise_log_start(self, offset: int) -> None:
        """Report that retention has deleted the records below `offset`."""
        if not self.stopped:
            self.replica.raise_log_start(offset, self._tools.now_ms())
            self.execute_effects()

    def damaged(self, epoch: int, reason: str) -> Repair:
        """Report a damaged epoch of the log; return how the replica repairs it, "none" after `stop`."""
        if self.stopped:
            return "none"
        repair = self.replica.damaged(epoch, reason, self._tools.now_ms())
        self.execute_effects()
        return repair

    def compacted(self) -> None:
        """Report that compaction has replaced epochs by new versions."""
        if not self.stopped:
            self.replica.compacted(self._tools.now_ms())
            self.execute_effects()

    def delete_below(self, offset: int) -> None:
        """As the owner, have records below a committed offset deleted; `Listener.records_deleted` reports it."""
        if not self.stopped:
            self.replica.delete_below(offset, self._tools.now_ms())
            self.execute_effects()

    # --- effects ---------------------------------------------------------------------------------------

    def execute_effects(self) -> None:
        """Execute the replica's effects until none is left."""
        self._execute(soon=True)

    def execute_accepted(self) -> None:
        """Execute the effects of `accept_group`, which change no deadline within the heartbeat interval."""
        self._execute(soon=False)

    def _execute(self, *, soon: bool, writes: bool = True, may_be_due: bool = True) -> None:
        """Execute effects, see `execute_effects`.

        Args:
            soon: whether the input may change a deadline within the heartbeat interval.
            writes: whether a write may begin.
            may_be_due: False if the input moves no deadline to an earlier time.
        """
        listener = self._listener
        self._may_be_due |= may_be_due
        if self._executing or listener is None or self.stopped:
            return  # An outer call is executing effects and handles these, too.
        self._executing = True
        replica, send = self.replica, self._tools.neighbours.send
        try:
            while True:
                for effect in replica.take_effects() if replica.state.effects else ():
                    if isinstance(effect, Append):  # The most frequent effect by far, then the next two.
                        self._enqueue(effect)
                    elif isinstance(effect, Send):
                        send(effect.to, effect.message, effect.batches)
                    elif isinstance(effect, CommitMoved):
                        listener.commit_moved()
                    else:
                        self._execute_rare(effect, listener)
                if writes and self._queue and not self._writing:
                    self._write_next()
                if not replica.state.effects:
                    break
        finally:
            self._executing = False
        may_be_due, self._may_be_due = self._may_be_due, False
        if soon:
            self._schedule(self)
        elif may_be_due and not self.is_touched:
            self._schedule_later(self)

    def _execute_rare(self, effect: Effect, listener: Listener) -> None:
        match effect:
            case Append() | Send() | CommitMoved():
                raise AssertionError(f"`_execute` executes {type(effect).__name__} itself")
            case ReadLog():
                self._read(effect)
            case SyncAhead():
                self._ahead.add(effect)
            case OwnerReady():
                self._owns(self)
                listener.owner_ready()
            case OwnerConfirmed():
                listener.owner_confirmed(effect.number)
            case EpochFenced():
                listener.fenced()
            case EpochDecided():
                listener.decided(effect)
            case EpochLost():
                listener.epoch_lost(effect)
            case RecordsDeleted():
                listener.records_deleted()
            case Halted():
                listener.halted(effect.reason)
            case _:
                self._enqueue(effect)

    def _read(self, effect: ReadLog) -> None:
        was_open = effect.epoch == self.replica.state.active.epoch

        def done(found: BatchRange | None, error: BaseException | None) -> None:
            if self.stopped:
                return
            if found is None:
                log.warning(
                    "%s: another node requested batches of epoch %d from offset %d, which cannot be read: %s",
                    self.name,
                    effect.epoch,
                    effect.from_offset,
                    error,
                )
                nothing = Position(effect.from_offset, 0)
                found = BatchRange((), nothing, nothing)
            if was_open and isinstance(error, DamagedError):
                self.replica.damaged(effect.epoch, error.message, self._tools.now_ms())
            self.replica.read(effect, found.batches, found.base, found.end, self._tools.now_ms())
            self.execute_effects()

        self._tools.readers.start(self._io_key, lambda: self.view.read_epoch(effect), done)

    def _synced_ahead(self, effect: SyncAhead) -> None:
        self.replica.synced_ahead(effect, self._tools.now_ms())
        self.execute_effects()

    # --- writes ----------------------------------------------------------------------------------------

    def _enqueue(self, effect: Write | RebuildProducers) -> None:
        size_bytes, has_room = 0, False
        if isinstance(effect, Append):
            state = self.replica.state
            owner, active = state.owner, state.chain.active
            has_room = owner is not None and owner.epoch == effect.epoch
            # An epoch that this node owned before its restart is its own, too.
            placed = active if active.epoch == effect.epoch else state.chain.descriptor(effect.epoch)
            if not has_room and placed.owner != state.node_id:
                size_bytes = sum(map(len, effect.batches))
                self.queued_bytes += size_bytes
                self._tools.peers_budget.used_bytes += size_bytes
        elif isinstance(effect, AppendPartialCopy):
            size_bytes = sum(map(len, effect.batches))
            self._count(size_bytes)
        elif isinstance(effect, Truncate):
            self._cuts.append(effect.end_offset)
        elif isinstance(effect, SetAside | DropCopy):
            self._cuts.append(self.replica.state.start_of(effect.epoch))
        elif isinstance(effect, WriteChain):
            self._decisions_queued += 1
        self._queue.append(_Queued(effect, size_bytes, has_room))

    def _count(self, size_bytes: int) -> None:
        self.queued_bytes += size_bytes
        self._tools.peers_budget.take_anyway(size_bytes)

    def _write_next(self) -> None:
        """Begin the next write; writes that complete at once are followed by the next one."""
        while self._queue and not self._writing and not self.stopped:
            self._writing = True
            effect = self._queue[0].effect
            if isinstance(effect, Append):
                self._append(self._merged() if len(self._queue) > 1 else [effect])
                continue
            chains = self._tools.chains
            match effect:
                case WriteFences():
                    chains.write_fences(effect.entries, lambda: self._written(ok=True))
                case WriteChain():
                    chains.write_chain(self.key, effect.entries, lambda: self._written(ok=True))
                case RebuildProducers():
                    self._rebuild(effect)
                case _:
                    self._perform(effect)

    def _merged(self) -> list[Append]:
        """Return the first append and those after it that continue it, up to a group's size."""
        group: list[Append] = []
        size_bytes = 0
        for queued in self._queue:
            effect = queued.effect
            if not isinstance(effect, Append):
                break
            size_bytes += sum(map(len, effect.batches))
            if group and (
                (effect.epoch, effect.base_offset) != (group[-1].epoch, group[-1].end_offset)
                or size_bytes > self._tools.group_bytes
            ):
                break
            group.append(effect)
        return group

    def _append(self, group: list[Append]) -> None:
        """Write appends on the event loop if that is fast, else on the worker."""
        started = time.perf_counter()
        epoch, synced = self._synced
        if epoch != group[0].epoch:
            epoch, synced = self._synced = (group[0].epoch, self.view.syncs_appends(group[0].epoch))
            self._is_grouped = self.view.shares_log(group[0].epoch)
            self._tally = self._tools.engines.of(self.view.engine(group[0].epoch))
        inline_writes, is_grouped = self._tools.inline_writes, synced and self._is_grouped
        if (not synced or is_grouped) and not self._tools.io.pending:
            size_bytes = log_writer.padded_bytes(group)
            if inline_writes.allows(size_bytes, started) and (
                (len(group) == 1 and self._queue[0].has_room) or log_writer.has_room(self.view, group[0], size_bytes)
            ):
                failed: StorageError | None = None
                sleeps_before = sleeps()
                try:
                    log_writer.append_in_place(self.view, group)
                except StorageError as error:
                    failed = error
                ended = time.perf_counter()
                inline_writes.took(size_bytes, ended - started, ended, sleeps_before=sleeps_before)
                if is_grouped and failed is None:
                    self._sync_group(group, started)
                else:
                    self._appended(group, started, ok=True, error=failed)
                return

        def written(ok: bool | None, error: BaseException | None) -> None:
            if is_grouped and ok and error is None and not self.stopped:
                self._sync_group(group, started)
            else:
                self._appended(group, started, ok=bool(ok), error=error)

        write = partial(log_writer.append, self.view, group, synced=synced and not is_grouped)
        self._tools.io.start(self._io_key, write, written)

    def _sync_group(self, group: list[Append], started: float) -> None:
        """Wait for a sync that covers appends which are written, together with other partitions."""
        store = self.view.store.active
        assert store is not None, "it was appended to"
        if store.sync_group is None:  # The store does not share a log, although others of its engine do.
            self._tools.io.start(
                self._io_key, store.sync, lambda _, error: self._appended(group, started, ok=True, error=error)
            )
            return

        def synced(error: BaseException | None) -> None:
            try:
                if error is None and not self.stopped:
                    store.sync()  # It has nothing to sync any more, and notes that.
                self._appended(group, started, ok=True, error=error)
            except Exception as fault:  # noqa: BLE001 - an engine of another package can raise any error
                self._fail(fault)  # Otherwise the batches would wait forever.

        self._tools.syncs.request(store.sync_group, synced)

    def _appended(self, group: list[Append], started: float, *, ok: bool, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
            return
        self._writing = False
        if self.stopped:
            return
        assert self._listener is not None
        if ok:
            self._tally.appends += 1
            self._tally.syncs += self._synced[1] and not self._is_grouped
        ended = time.perf_counter()
        is_owner = self.replica.state.owner is not None
        # An append at a follower without gaps moves no deadline to an earlier time.
        may_be_due = is_owner or self._in_doubt or not ok
        self._tell(len(group), ok=ok)
        if self._executing:  # A write on the event loop: the outer call executes the effects.
            self._may_be_due |= may_be_due
            if ok:
                self._listener.appended(group, seconds=ended - started)
            return
        if not is_owner:
            # The owner waits for the acknowledgement, so it is sent before the listener is called. No write begins: a
            # write on the event loop would tell the listener about later appends first.
            self._execute(soon=not ok, writes=False, may_be_due=may_be_due)
        if ok:
            self._listener.appended(group, seconds=ended - started)
        if may_be_due or self._queue or self.replica.state.effects:
            self._execute(soon=not ok, may_be_due=may_be_due)

    @property
    def may_join(self) -> bool:
        """Whether nothing is pending, and the appends of the open epoch are synced together with other partitions'."""
        is_idle = not (self._writing or self._queue or self._executing or self._in_doubt or self.stopped)
        return is_idle and self._is_grouped and self._synced == (self.replica.state.tail.epoch, True)

    def begin_joint(self) -> None:
        """Begin no other write before `end_joint`: a `JointAppend` writes a batch of this partition."""
        self._writing = True

    def end_joint(
        self,
        append: SoleAppend,
        data: memoryview,
        store: EpochStore,
        error: BaseException | None,
        *,
        now_ms: int,
        seconds: float,
    ) -> None:
        """Complete the append of a `JointAppend`, or fail with its error, and continue with other writes."""
        if error is not None:
            self._fail(error)
            return
        self._writing = False
        if self.stopped:
            return
        assert self._listener is not None
        try:
            store.note_synced()
            self.written_ms = now_ms
            self._tools.writes.value += 1
            self._tally.appends += 1
            is_current = sole_append.complete(self.replica, append)
            self._listener.appended_jointly(append.header, data, seconds=seconds, is_current=is_current)
            if self._queue or self.replica.state.effects:
                self._execute(soon=True)
        except Exception as fault:  # noqa: BLE001 - an engine of another package can raise any error
            self._fail(fault)  # Otherwise the other partitions of the write would wait forever.

    def _perform(self, effect: log_writer.Step) -> None:
        def done(ok: bool | None, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
                return
            self._written(ok=bool(ok))
            if self._listener is not None and isinstance(effect, FinishPartialCopy) and not self.stopped:
                self._listener.backfilled()

        self._tools.io.start(self._io_key, partial(log_writer.perform, self.view, effect), done)

    def _written(self, *, ok: bool) -> None:
        """Report a completed write to the replica."""
        self._writing = False
        if self.stopped:
            return
        self._tell(1, ok=ok)
        self.execute_effects()

    def _tell(self, count: int, *, ok: bool) -> None:
        now_ms = self.written_ms = self._tools.now_ms()
        self._tools.writes.value += count
        for _ in range(count):
            queued = self._queue.popleft()
            if queued.size_bytes:
                self.queued_bytes -= queued.size_bytes
                self._tools.peers_budget.used_bytes -= queued.size_bytes
            if isinstance(queued.effect, Truncate | SetAside | DropCopy):
                self._cuts.popleft()
            elif isinstance(queued.effect, WriteChain):
                self._decisions_queued -= 1
            self.replica.wrote(now_ms, ok=ok)
        if self._in_doubt:
            self._check_doubt()

    def _check_doubt(self) -> None:
        """Once the core trusts a copy that may have lacked records, record durably that the copy is complete."""
        if not self.replica.state.doubt and not self._writing:
            self._in_doubt = False
            self._writing = True
            self._tools.io.start(self._io_key, self.view.end_doubt, lambda _, error: self._repaired(error))

    def _repaired(self, error: BaseException | None) -> None:
        self._writing = False
        if error is not None:
            self._fail(error)
        else:
            self.execute_effects()

    def _rebuild(self, effect: RebuildProducers) -> None:
        # An owner whose previous epochs are lost on every node begins without their producers.
        log_start = max(self.replica.state.log_start, self.replica.backfill.lost_below)

        def done(
            found: tuple[ProducerTable | None, int, LaterSnapshot | None] | None, error: BaseException | None
        ) -> None:
            self._writing = False
            if self.stopped:
                return
            if found is None:
                self._fail(error or AssertionError("a rebuild returned nothing"))
                return
            self._queue.popleft()
            table, last_us, later = found
            self.replica.producers_rebuilt(effect, table, last_us, self._tools.now_ms(), later=later)
            self.execute_effects()

        def rebuild() -> tuple[ProducerTable | None, int, LaterSnapshot | None]:
            table, last_us = self.view.producers.at(effect.offset, log_start=log_start)
            is_wanted = effect.or_later and (table is None or table.known_from > 0)
            return table, last_us, self.view.producers.later(effect.offset) if is_wanted else None

        self._tools.io.start(self._io_key, rebuild, done)

    def _fail(self, error: BaseException) -> None:
        """Stop after a failure of the disk or the code: nothing more is written, and the node stops."""
        if self.stopped:
            return
        self.stop()
        assert self._listener is not None
        self._listener.failed(error)
