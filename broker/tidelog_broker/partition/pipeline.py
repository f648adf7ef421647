"""A partition's pipeline at its owner, the only source of producers' batches: drain, reserve space, assign, complete.

`server/handlers/publish.py` verifies each batch when it arrives: before it is queued, or on a worker while it waits. A
batch at the head that is not verified yet stops the drain, and a refused batch does not affect the others. The sequence
numbers of a batch are checked when its offset is assigned (`OffsetAssigner.assign`, `ProducerTable.check`). The
replica's driver executes all writes of the partition, including those that do not come from producers.

One group at a time is written. While it is written and synced the next one gathers in the queue, so a partition under
load makes few large writes and an idle one answers at once; no linger setting is needed. The next group does
not wait for the replicas' acknowledgements: batches with offsets wait in `PendingAcks`, up to a bound, for the high
watermark.

Disk space is allocated before offsets are assigned, so a full disk refuses a group cleanly. A failed write or sync is
final: the outcome of the group is unknown, all waiting batches are refused and the node stops.

When an epoch ends, its batches wait for the decision: records before its end are stored, records after it are not,
and both outcomes are definite. Batches without offsets wait for the next epoch if this node owns it, too; otherwise
they are refused, because their sender turns to the new owner, and permissions and settings were checked before. A batch
that was computed from the state of the log is bound to the epoch in which the state was read, and refused in any other
(ADR 0123).

`PendingAcks` has one queue per kind of acknowledgement, in offset order, so complete batches are always at the head.
A retry waits in the same queue, for the commit of its first attempt. `acks=all` concerns the replicas of the batch's
epoch. While the epoch is open, their acknowledgements are known. After its end they are not reported any more: a batch
that not all replicas were known to hold, or that is retried later, is answered with STORED_ON_QUORUM. Rejected: waiting
for the missing replicas, which may have failed permanently and caused the end of the epoch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog_broker.core.replication.epoch_writer import Group, OffsetAssigner
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.partition.deduplication import INLINE_BYTES, Deduplication
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.joint_append import JointAppend
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.deduplication import THINNED_EXTRA_BYTES
from tidelog_proto.batch.header import BatchHeader
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES

log = logging.getLogger(__name__)

DISK_FULL_RETRY_MS = 1000
OVERLOADED_RETRY_MS = 20
GROUP_BATCHES_MAX: Final = 256
"""Bound on the batches of one group; other tasks of the event loop run before the next group. Each batch takes about 20
us of the event loop's time, however small, and one request may bring thousands.
"""


class QueuedBatch:
    """One batch of a PUBLISH in the pipeline's queue, or in the group that is being made of its head.

    Attributes:
        header: the batch's header; None until the batch is verified.
        refusal: the error of an invalid batch; None if it is valid or not verified yet.
        settle: called once with the outcome.
        epoch: the only epoch in which the batch may be appended; None for a batch that depends on no state of the log.
    """

    __slots__ = ("acks", "data", "epoch", "header", "refusal", "settle", "tenure")

    def __init__(
        self,
        data: memoryview,
        header: BatchHeader | None,
        settle: Settle,
        *,
        acks: pb.Acks = pb.QUORUM,
        epoch: int | None = None,
    ) -> None:
        self.data = data
        self.epoch = epoch
        self.header = header
        self.refusal: ProtocolError | None = None
        self.settle = settle
        self.acks = acks
        self.tenure = 0
        """The number of epochs of other nodes that the pipeline had counted when the batch arrived."""

    def may_enter(self, epoch: int) -> bool:
        """Return whether the batch may be appended in an epoch."""
        return self.epoch is None or self.epoch == epoch


class Pipeline:
    """Queues the batches of one partition, and has them written in groups, one group at a time.

    Args:
        driver: assigns offsets and writes; `Partition.appended` passes its completed writes to `written`.
        failed: called with the error if the disk fails.
    """

    def __init__(
        self,
        state: PartitionState,
        driver: ReplicaDriver,
        *,
        tools: PartitionTools,
        io_key: int,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._driver = driver
        self._log = state.log
        self._loop = tools.loop
        self._workers = tools.io
        self._io_key = io_key
        self._disk_failed = failed
        self._full_disk = tools.full_disk
        self._bytes_max = tools.settings.partition_in_flight_bytes
        self._group_bytes_max = self._group_bytes = tools.settings.group_bytes
        self._screen: Deduplication | None = None
        self._queue: deque[QueuedBatch] = deque()
        self.waiting = PendingAcks()
        """Batches with offsets that wait for replicas."""
        self._uncommitted: deque[tuple[int, int]] = deque()
        """End offset and bytes of each group with offsets that is not committed yet."""
        self._uncommitted_bytes = 0
        self.waiting_for_idle: list[asyncio.Future[None]] = []
        """Callers of `idle`."""
        self._busy = False
        self._rests = False
        """Whether the next group waits until other tasks of the event loop have run, after one of the maximum size."""
        self._refusal: ProtocolError | None = None
        self._tenure = 0
        """How many epochs of other nodes have begun since this node started."""
        self.group: Group | None = None
        """The group that is being written."""
        self.has_rolled = False
        """Whether a segment was rolled since the flag was last cleared."""
        self.queued_bytes = 0
        self.full_since_s: float | None = None
        """Since when the disk has been full for appends, on the monotonic clock; None if it is not full."""

    def screen_by(self, screen: Deduplication | None) -> None:
        """Enable or disable deduplication, which makes groups short: a batch is screened after the previous one."""
        self._screen = screen
        self._group_bytes = self._group_bytes_max if screen is None else min(INLINE_BYTES, self._group_bytes_max)

    @property
    def waits_for_all(self) -> bool:
        """Whether a batch waits for every replica."""
        return bool(self.waiting.all)

    async def idle(self) -> None:
        """Wait until nothing is queued, being written or awaiting replicas."""
        while self._busy or self._queue or self.waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting_for_idle.append(done)
            await done

    def _tell_idle(self) -> None:
        if self.waiting_for_idle and not (self._busy or self._queue or self.waiting):
            waiting, self.waiting_for_idle = self.waiting_for_idle, []
            for done in waiting:
                if not done.done():
                    done.set_result(None)

    def submit(self, pending: QueuedBatch) -> None:
        """Queue a batch. Its outcome is reported exactly once, possibly before this returns."""
        if self._refusal is not None:
            pending.settle(self._refusal, False)
            return
        if self._queue and self.queued_bytes + len(pending.data) > self._bytes_max:
            name = self._state.name
            pending.settle(
                ProtocolError(
                    pb.OVERLOADED,
                    f"{name}: {self.queued_bytes:,} bytes of publishes are queued, and at most {self._bytes_max:,} may "
                    "be; send again",
                    retry_after_ms=OVERLOADED_RETRY_MS,
                ),
                False,
            )
            return
        pending.tenure = self._tenure
        self._queue.append(pending)
        self.queued_bytes += len(pending.data)
        if not self._busy:
            self.start_next_group()

    def submit_jointly(
        self, data: memoryview, header: BatchHeader, settle: Settle, joint: JointAppend, *, acks: pb.Acks
    ) -> None:
        """Have a verified batch written together with those of other partitions if nothing is pending, or queue it."""
        is_pending = self._busy or self._queue or self._rests or self._uncommitted
        if not is_pending and self._screen is None and self._refusal is None and self._state.refusal is None:
            append = joint.add(self._driver, header, data)
            if append is not None:
                self._busy = True
                self.waiting.add(acks, append.placed, False, settle, epoch=append.placed.epoch)
                return
        self.submit(QueuedBatch(data, header, settle, acks=acks))

    def written_jointly(self) -> None:
        """Settle the batch of `submit_jointly`, which is durable, and start the next group."""
        self._busy = False
        owner = self._state.replica.assigner
        if owner is not None:
            self.waiting.release(owner, self._state.replica.state.high_watermark)
        if self._queue or self.waiting_for_idle:
            self.start_next_group()

    def refuse(self, error: ProtocolError) -> None:
        """Refuse all queued and all future batches: the partition was deleted or has failed, or the node stops."""
        self._refusal = error
        self.flush(error)

    def flush(self, error: ProtocolError) -> None:
        """Refuse all queued batches."""
        while self._queue:
            self._take().settle(error, False)
        self._tell_idle()

    def abandon(self, error: ProtocolError) -> None:
        """Refuse everything permanently, including batches with offsets, whose outcome stays unknown."""
        self.waiting.fail(error)
        self._busy = False
        self.group = None
        self.refuse(error)

    # --- writing groups of batches in turn ----------------------------------------------------------------

    def start_next_group(self) -> None:
        """Start the next group if no group is being written, this node may append, and the queue's head is verified."""
        if self._busy or (self._rests and self._queue):
            return
        if not self._queue:
            if self.waiting_for_idle:
                self._tell_idle()
            return
        if self._uncommitted_bytes > self._bytes_max:
            return  # The replicas lag; `released` starts the next group.
        owner = self._appender()
        if isinstance(owner, ProtocolError):
            self.flush(owner)
            return
        if owner is None:
            self._driver.want_owner()
            return
        if self._screen is not None and not self._screen.is_ready_for(owner):
            self._busy = True
            self._screen.build(owner, self._screen_built)
            return
        drained = self._drain(owner)
        if not drained:
            if self.waiting_for_idle:
                self._tell_idle()
            return
        self._busy = True
        needed_bytes = 0
        for pending in drained:
            needed_bytes += len(pending.data) + -len(pending.data) % BATCH_ALIGNMENT_BYTES
        if self._screen is not None:
            needed_bytes += len(drained) * THINNED_EXTRA_BYTES
        if self._log.has_room(owner.epoch, needed_bytes):
            self._append(owner, drained)
            return
        engine = self._state.engine
        self._workers.start(
            self._io_key,
            lambda: self._log.make_space(owner.epoch, owner.next_offset, needed_bytes, engine=engine),
            lambda rolled, error: self._made_space(owner, drained, error, rolled=bool(rolled)),
        )

    def _appender(self) -> OffsetAssigner | ProtocolError | None:
        """Return the owner's state if a group may be appended now, else why not; None if that will be possible soon."""
        state = self._state
        assigner, known = state.replica.assigner, state.quorum_known
        if assigner is None or state.refusal is not None:
            return state.unwritable() or assigner
        # With an assigner this node owns the active epoch and participates in it; an only copy is a quorum by itself.
        if known is None or known[0] is not state.replica.state.active:
            return state.quorum_lost() or assigner
        return known[1] or assigner

    def _drain(self, owner: OffsetAssigner) -> list[QueuedBatch]:
        """Take verified batches from the head, up to a group's size; refuse invalid ones and those of other epochs."""
        drained: list[QueuedBatch] = []
        size_bytes = 0
        while self._queue:
            head = self._queue[0]
            if head.refusal is not None:
                self._take().settle(head.refusal, False)
                continue
            if head.epoch is not None and not head.may_enter(owner.epoch):
                self._take().settle(self._state.outdated(head.epoch), False)
                continue
            if head.epoch is None and head.tenure != self._tenure:
                self._take().settle(self._state.interrupted(), False)
                continue
            if head.header is None or (drained and size_bytes + len(head.data) > self._group_bytes):
                break
            if len(drained) == GROUP_BATCHES_MAX:
                self._rests = True
                self._loop.call_soon(self._rested)
                break
            drained.append(self._queue.popleft())
            size_bytes += len(head.data)
        self.queued_bytes -= size_bytes
        return drained

    def _rested(self) -> None:
        self._rests = False
        self.start_next_group()

    def _take(self) -> QueuedBatch:
        pending = self._queue.popleft()
        self.queued_bytes -= len(pending.data)
        return pending

    def _made_space(
        self, owner: OffsetAssigner, drained: list[QueuedBatch], error: BaseException | None, *, rolled: bool
    ) -> None:
        self.has_rolled |= rolled
        if self._refusal is not None:
            # The partition was deleted or stopped during the allocation: the files may be closed before a write.
            self._refuse_drained(drained, self._refusal)
        elif error is not None and not isinstance(error, DiskFullError):
            self._fail(drained, error)
        elif owner is not self._state.assigner:
            # The epoch has ended meanwhile: start over.
            self._put_back(drained)
            self._busy = False
            self.start_next_group()
        elif error is not None:
            if error.code == pb.DISK_FULL:
                now_s = time.monotonic()
                self._full_disk.add(len(drained), now_s)
                self.full_since_s = self.full_since_s or now_s
            self._refuse_drained(drained, ProtocolError(error.code, error.message, retry_after_ms=DISK_FULL_RETRY_MS))
        else:
            self.full_since_s = None
            self._append(owner, drained)

    def _put_back(self, drained: list[QueuedBatch]) -> None:
        """Put batches back at the head of the queue."""
        self._queue.extendleft(reversed(drained))
        self.queued_bytes += sum(len(pending.data) for pending in drained)

    def _screen_built(self, error: ProtocolError | None) -> None:
        """Continue with the deduplication window, or refuse all queued batches."""
        if self._refusal is not None:
            return
        self._busy = False
        if error is not None:
            self.flush(error)
        self.start_next_group()

    def roll(self) -> None:
        """Roll the log to a new segment, unless a group is being written or queued."""
        if self._busy or self._queue or self._refusal is not None:
            return
        self._busy = True
        self._workers.start(
            self._io_key, self._log.roll, lambda rolled, error: self._rolled(error, rolled=bool(rolled))
        )

    def _rolled(self, error: BaseException | None, *, rolled: bool) -> None:
        self.has_rolled |= rolled
        if self._refusal is not None:
            return
        self._busy = False
        if error is not None and not isinstance(error, DiskFullError):
            self._disk_failed(error)
            return
        self.start_next_group()

    def _refuse_drained(self, drained: list[QueuedBatch], refusal: ProtocolError) -> None:
        """Refuse a group without offsets, and continue."""
        for pending in drained:
            pending.settle(refusal, False)
        self._busy = False
        self.start_next_group()

    def _append(self, owner: OffsetAssigner, drained: list[QueuedBatch]) -> None:
        """Assign offsets to a group and start its write; `owner` may still append."""
        batches: list[Batch] = []
        for pending in drained:
            assert pending.header is not None, "only verified batches are drained"
            batches.append(Batch(pending.header, pending.data))
        if self._screen is None:
            group = self._driver.accept_group(batches)
        else:
            screened = self._screened(self._screen, owner, drained, batches)
            if screened is None:
                return
            group = screened
        for pending, outcome, duplicate in zip(drained, group.outcomes, group.duplicates, strict=True):
            if isinstance(outcome, PlacedBatch):
                self.waiting.add(pending.acks, outcome, duplicate, pending.settle, epoch=owner.epoch)
            else:
                pending.settle(outcome, False)
        if not group.batches:
            self._busy = False
            self.released()
            return
        self.group = group
        size_bytes = sum(map(len, group.batches))
        self._uncommitted.append((group.end_offset, size_bytes))
        self._uncommitted_bytes += size_bytes
        self._driver.execute_accepted()

    def _screened(
        self, screen: Deduplication, owner: OffsetAssigner, drained: list[QueuedBatch], batches: list[Batch]
    ) -> Group | None:
        """Assign offsets to a group without its duplicates; None if that has to wait.

        Unprocessed batches go back to the head of the queue.
        """
        if not screen.is_ready_for(owner):  # The topic was altered during the allocation or the preparation of a batch.
            self._put_back(drained)
            self._busy = False
            self.start_next_group()
            return None
        if screen.is_long(owner, batches[0]):
            screen.prepare(owner, batches[0], lambda: self._made_space(owner, drained, None, rolled=False))
            return None
        group = screen.screen_and_accept(owner, batches)
        self._put_back(drained[len(group.outcomes) :])
        del drained[len(group.outcomes) :]
        return group

    def _fail(self, drained: list[QueuedBatch], error: BaseException) -> None:
        """Refuse a group of unknown outcome, and all later batches, because the disk has failed."""
        failure = ProtocolError(
            pb.STORAGE_FAILED, f"{self._state.name}: writing the log failed, so its owner stops: {error}"
        )
        for pending in drained:
            pending.settle(failure, False)
        self._disk_failed(error)

    # --- outcome of a group ----------------------------------------------------------------------------

    def written(self, end_offset: int) -> None:
        """Record that this node's log is written up to `end_offset`, so that the next group may start.

        It is started by `released`, which `Partition` calls next: in `appended`, or when the high watermark moves.
        """
        if self.group is not None and end_offset >= self.group.end_offset:
            self.group = None
            self._busy = False

    def released(self) -> None:
        """Settle batches that enough replicas hold, and start the next group if no group is being written."""
        waiting = self.waiting
        pending = self._uncommitted or self._queue or self.waiting_for_idle
        if not (pending or waiting.quorum or waiting.one or waiting.all):
            return  # Nothing is pending, as on a follower.
        owner = self._state.replica.assigner
        # `PartitionState.high_watermark` differs from the core's for a halted replica only, which has no assigner.
        known = self._state.replica.state
        high_watermark = known.high_watermark if owner is not None else self._state.high_watermark
        while self._uncommitted and self._uncommitted[0][0] <= high_watermark:
            self._uncommitted_bytes -= self._uncommitted.popleft()[1]
        if owner is not None:
            waiting.release(owner, high_watermark)
        if self._queue or self.waiting_for_idle:
            self.start_next_group()

    def acknowledged(self) -> None:
        """Settle batches that wait for all replicas, because a replica has reported how many records it has."""
        if not self.waiting.all:
            return
        owner = self._state.assigner
        if owner is not None:
            self.waiting.release(owner, self._state.high_watermark)
            if self.waiting_for_idle:
                self._tell_idle()

    def decided(self, end_offset: int, refusal: ProtocolError, *, held_by_all: int, handed_over: bool) -> None:
        """Handle the end of the epoch at `end_offset`, see `PendingAcks.decided`.

        Args:
            refusal: the error for batches that are not stored.
            handed_over: whether another node owns the next epoch.
        """
        self._tenure += handed_over
        self._uncommitted.clear()
        self._uncommitted_bytes = 0
        self.full_since_s = None  # No batch was refused for a full disk in the next epoch yet.
        self.waiting.decided(end_offset, refusal, held_by_all=held_by_all)
        self.start_next_group()


Settle = Callable[[PlacedBatch | ProtocolError, bool], None]
"""Called once per batch with the stored position or the error, and whether the batch is a duplicate."""


class _Awaiting(NamedTuple):
    stored: PlacedBatch
    duplicate: bool
    settle: Settle


class PendingAcks:
    """Queues the batches of one partition that have offsets, by the kind of acknowledgement that they wait for."""

    def __init__(self) -> None:
        self.quorum: deque[_Awaiting] = deque()
        self.one: deque[_Awaiting] = deque()
        self.all: deque[_Awaiting] = deque()

    def __bool__(self) -> bool:
        return bool(self.quorum or self.one or self.all)

    def add(self, acks: pb.Acks, stored: PlacedBatch, duplicate: bool, settle: Settle, *, epoch: int) -> None:
        """Add a batch with offsets. `epoch` is the open epoch; a retry may be in an earlier one."""
        if acks == pb.ALL and stored.epoch != epoch:
            settle(_on_quorum(stored), False)
            return
        queue = self.one if acks == pb.ONE else self.all if acks == pb.ALL else self.quorum
        queue.append(_Awaiting(stored, duplicate, settle))

    def release(self, owner: OffsetAssigner, high_watermark: int) -> None:
        """Answer batches that enough replicas hold."""
        waiting = self.quorum
        while waiting and waiting[0].stored.end_offset <= high_watermark:
            stored, duplicate, settle = waiting.popleft()
            settle(stored, duplicate)
        if self.one:
            _settle(self.one, max(high_watermark, owner.held_by(owner.node_id)))
        if self.all:
            _settle(self.all, min(high_watermark, owner.held_by_all))

    def decided(self, end_offset: int, refusal: ProtocolError, *, held_by_all: int) -> None:
        """Answer all batches: the epoch has ended; records before its end are stored, later ones are not.

        Args:
            refusal: the error for batches that are not stored.
            held_by_all: the offset up to which all replicas are known to have the records.
        """
        for waiting in (self.quorum, self.one, self.all):
            while waiting:
                stored, duplicate, settle = waiting.popleft()
                if stored.end_offset > end_offset:
                    settle(refusal, False)
                elif waiting is self.all and stored.end_offset > held_by_all:
                    settle(_on_quorum(stored), False)
                else:
                    settle(stored, duplicate)

    def fail(self, error: ProtocolError) -> None:
        """Fail all batches: their outcome stays unknown."""
        for waiting in (self.quorum, self.one, self.all):
            while waiting:
                waiting.popleft().settle(error, False)


def _settle(waiting: deque[_Awaiting], end_offset: int) -> None:
    while waiting and waiting[0].stored.end_offset <= end_offset:
        stored, duplicate, settle = waiting.popleft()
        settle(stored, duplicate)


def _on_quorum(stored: PlacedBatch) -> ProtocolError:
    return ProtocolError(
        pb.STORED_ON_QUORUM,
        f"the batch is stored at offset {stored.base_offset} and committed, but its epoch {stored.epoch} has ended, "
        "and it is unknown whether all replicas of that epoch have the batch; do not send it again",
    )
