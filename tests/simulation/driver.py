"""Carries out the effects of one partition's core on one node, by the rules that the node's shell has, too.

Writes are done one after the other in their order; each is three events (begun, on the disk, told to the core), so
that a crash can come between any two. Appends that follow each other may be merged into one write and one sync.
Entries for the journals of the node go through the node's journal workers, which merge those of several partitions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation.lies import lie
from tests.simulation.publishing import Pending, PublishReply, Waiting
from tests.simulation.store import Store

from tidelog_broker.core import effects as fx
from tidelog_broker.core.owner import Candidate
from tidelog_broker.core.ports import Batch, PartitionKey, Plan
from tidelog_broker.core.replica import Replica
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader

if TYPE_CHECKING:
    from tests.simulation.process import Process

QUEUE_MAX = 4096


class PartitionDriver:
    """One partition on one process."""

    def __init__(self, process: Process, key: PartitionKey, store: Store, replica: Replica) -> None:
        self.process = process
        self.key = key
        self.store = store
        self.replica = replica
        self.waiting = Waiting()
        self._queue: deque[fx.Write | fx.RebuildProducers] = deque()
        self._writing = False
        self._tick_ms: int | None = None

    @property
    def name(self) -> str:
        """The node and the partition, for traces."""
        return f"{self.process.node_id}/{self.key[1]}"

    # ----------------------------------------------------------------------------------------- inputs

    def receive(self, sender: str, message: fx.PeerMessage, batches: Sequence[Batch]) -> None:
        """A message has arrived."""
        self.replica.receive(sender, message, batches, self.process.now_ms)
        self.pump()

    def neighbours_changed(self) -> None:
        """Who seems to be alive has changed."""
        self.replica.neighbours_changed(self.process.now_ms)
        self.pump()

    def publish(
        self, header: BatchHeader, data: bytearray, acks: pb.Acks, reply: Callable[[PublishReply], None]
    ) -> None:
        """A client wants to publish a batch, which this node may be the owner for."""
        if not self.replica.can_append:
            self.replica.want_owner(self.process.now_ms)
            self.pump()
            reply(PublishReply("refused", owner_hint=self.replica.active.owner))
            return
        if self.process.machine.disk.free_bytes is not None:
            reply(PublishReply("refused", error=pb.DISK_FULL))
            return
        group = self.replica.reserve(
            [Candidate(header, memoryview(data))], now_us=self.process.wall_us, now_ms=self.process.now_ms
        )
        outcome = group.outcomes[0]
        if isinstance(outcome, ProtocolError):
            reply(PublishReply("refused", error=outcome.code))
        else:
            self.waiting.add(Pending(outcome.epoch, outcome.base_offset, outcome.end_offset, acks, reply))
        self.pump()

    def roll_over(self, plan: Plan) -> None:
        """End the epoch by plan."""
        self.replica.roll_over(plan, self.process.now_ms)
        self.pump()

    def read_committed(self, offset: int) -> Sequence[memoryview]:
        """Read for a consumer, up to the watermark that is known here, or to where the log is about to be cut."""
        end = min([self.replica.high_watermark, *self.cuts()])
        return self.process.on_disk(lambda: self.store.read_committed(offset, end)) or []

    def cuts(self) -> list[int]:
        """Return where the log is about to be cut: what lies behind that may have been decided otherwise."""
        cut = [effect.end_offset for effect in self._queue if isinstance(effect, fx.Truncate)]
        return cut + [self.replica.start_of(effect.epoch) for effect in self._queue if isinstance(effect, fx.SetAside)]

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._queue

    # ----------------------------------------------------------------------------------------- effects

    def pump(self) -> None:
        """Carry out what the core wants, after every input."""
        process = self.process
        for effect in self.replica.take_effects():
            if isinstance(effect, fx.Send):
                process.send(self.key, effect)
            elif isinstance(effect, fx.Write | fx.RebuildProducers):
                assert len(self._queue) < QUEUE_MAX, "the core queues writes without bound"
                self._queue.append(effect)
            elif isinstance(effect, fx.ReadLog):
                process.after(process.read_us(), partial(self._read, effect))
            elif isinstance(effect, fx.SyncAhead):
                process.after(process.write_us(), partial(self._sync_ahead, effect))
            else:
                self._news(effect)
        self.waiting.settle(self.replica)
        if self.store.doubt and not self.replica.doubt:
            process.on_disk(self.store.doubt_is_over)
        process.world.checks.after_step(self)
        self._schedule_tick()
        self._next_write()

    def _news(self, effect: fx.News) -> None:
        note = self.process.world.clock.note
        note("news", self.name, effect)
        if isinstance(effect, fx.EpochDecided):
            self.waiting.decided(effect.epoch, effect.end_offset, effect.held_by_all)

    def _schedule_tick(self) -> None:
        due_ms = self.replica.deadline_ms
        if due_ms is None or (self._tick_ms is not None and self._tick_ms <= due_ms):
            return
        self._tick_ms = due_ms
        self.process.at_ms(due_ms, lambda: self._tick(due_ms))

    def _tick(self, due_ms: int) -> None:
        if self._tick_ms == due_ms:
            self._tick_ms = None
            self.replica.tick(self.process.now_ms)
            self.pump()

    def _read(self, effect: fx.ReadLog) -> None:
        found = self.process.on_disk(lambda: self.store.read_epoch(effect))
        if found is not None:
            if self.process.machine.lies and self._knows_the_end(effect.to, effect.epoch):
                found = lie(*found)
            self.replica.read(effect, *found, self.process.now_ms)
            self.pump()

    def _knows_the_end(self, node_id: str, epoch: int) -> bool:
        """Whether this node and another one know the decision about an epoch, without which a lie cannot be told."""
        machine = self.process.world.machine_of(node_id)
        process = machine.running if machine is not None else None
        other = process.partitions.get(self.key) if process is not None else None
        return epoch < self.replica.active.epoch and other is not None and epoch < other.replica.active.epoch

    def _sync_ahead(self, effect: fx.SyncAhead) -> None:
        done = self.process.on_disk(lambda: self.store.sync_ahead(effect))
        if done:
            self.replica.synced_ahead(effect, self.process.now_ms)
            self.pump()

    # ----------------------------------------------------------------------------------------- writes

    def _next_write(self) -> None:
        if self._writing or not self._queue:
            return
        self._writing = True
        effect = self._queue[0]
        process = self.process
        if isinstance(effect, fx.RebuildProducers):
            process.after(process.read_us(), lambda: self._rebuild(effect))
        elif isinstance(effect, fx.WriteFences):
            process.fence_worker.submit(effect.entries, lambda: self._done([effect], [True]))
        elif isinstance(effect, fx.WriteChain):
            process.chain_worker.submit(effect.entries, lambda: self._done([effect], [True]))
        else:
            process.after(process.write_us(), self._perform)

    def _group(self) -> list[fx.Write]:
        """Return the first write, with appends behind it that continue it."""
        group: list[fx.Write] = []
        for effect in self._queue:
            if isinstance(effect, fx.RebuildProducers):
                break
            if group and not (isinstance(effect, fx.Append) and self._continues(group[-1], effect)):
                break
            group.append(effect)
            if not isinstance(effect, fx.Append):
                break
        return group

    @staticmethod
    def _continues(before: fx.Write, after: fx.Append) -> bool:
        return isinstance(before, fx.Append) and before.epoch == after.epoch and before.end_offset == after.base_offset

    def _perform(self) -> None:
        group = self._group()
        disk, free_bytes = self.process.machine.disk, self.process.machine.disk.free_bytes
        if isinstance(group[0], fx.Append) and self.store.owner_of(group[0].epoch) == self.process.node_id:
            # An owner takes the space before it gives out offsets; whether there is any was asked in `publish`.
            disk.free_bytes = None
        results = self.process.on_disk(lambda: self.store.perform(group))
        disk.free_bytes = free_bytes
        if results is None:
            return
        for effect, done in zip(group, results, strict=True):
            self.process.world.checks.performed(self, effect, done=done)
        self.process.after(self.process.tell_us(), lambda: self._done(group, results))

    def _done(self, group: Sequence[fx.Write], results: Sequence[bool]) -> None:
        """Tell the core of the writes that are durable, oldest first."""
        for effect, done in zip(group, results, strict=True):
            assert self._queue.popleft() is effect
            self.replica.wrote(self.process.now_ms, ok=done)
        self._writing = False
        self.pump()

    def _rebuild(self, effect: fx.RebuildProducers) -> None:
        found = self.process.on_disk(lambda: self.store.rebuild_producers(effect.offset, self.replica.log_start))
        if found is None:
            return
        table, timestamp_us = found
        assert self._queue.popleft() is effect
        self._writing = False
        self.replica.producers_rebuilt(effect, table, timestamp_us, self.process.now_ms)
        self.pump()
