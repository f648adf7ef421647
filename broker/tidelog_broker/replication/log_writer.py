"""Execution of a replica's log writes, on the partition's I/O worker or, while writes are fast, on the event loop.

Every write is durable when its function returns, as far as its epoch requires. `False` means that nothing was written,
because there was no space or the write no longer fits the log; the core then plans again. Any other failure is raised,
and final: the node stops.

`InlineWrites` decides where an append is written. A copy into the page cache takes a fraction of a millisecond, two
thread switches cost more than a small copy, and on a single core a worker adds no parallelism. But the same call can
stall when the kernel throttles writers or memory is short. So the event loop writes itself only while that is fast:
after a write that was slow because it waited, all writes go to the workers for a while, then one is tried again. A
write that was merely preempted does not count, because with few processors the thread switches are what costs. The
clock cannot distinguish the two; the count of voluntary context switches can.

The duration of a copy depends on its target: 5 to 10 GB/s into a reused file, a tenth of that or less into fresh pages.
With thousands of growing logs the event loop would do little else. So the policy estimates from recent large writes,
and passes writes into slow memory to a worker if they would take longer than two thread switches; from time to time it
tries one again.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Sequence
from typing import Final

from tidelog_broker.core.replication.effects import (
    Append,
    AppendPartialCopy,
    DropCopy,
    FinishPartialCopy,
    KeepProducers,
    SetAside,
    SyncLog,
    Truncate,
)
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.io.errors import DiskFullError, DivergedError, NotHeldError, StorageError
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES

log = logging.getLogger(__name__)

Step = Truncate | SyncLog | AppendPartialCopy | FinishPartialCopy | SetAside | DropCopy | KeepProducers
"""A write other than an append; each is carried out separately."""

LogWrite = Append | Step


def has_room(view: ReplicaLog, first: Append, size_bytes: int) -> bool:
    """Return whether an append fits the current segment's allocated space; `size_bytes` includes padding."""
    active = view.store.active
    return (
        active is not None
        and (active.epoch, active.end_offset) == (first.epoch, first.base_offset)
        and not active.is_repairing
        and active.has_room(size_bytes)
    )


def padded_bytes(group: Sequence[Append]) -> int:
    """Return the size of appends in a segment, with padding."""
    size_bytes = 0
    for one in group:
        for batch in one.batches:
            size_bytes += len(batch) + -len(batch) % BATCH_ALIGNMENT_BYTES
    return size_bytes


def append(view: ReplicaLog, group: Sequence[Append], *, synced: bool) -> bool:
    """Write consecutive appends as one, and sync once; return False if nothing was written.

    That happens if there is no space, and for later appends, which then do not continue the log.

    Raises:
        StorageError: the disk failed.
    """
    store, first = view.store, group[0]
    batches = [batch for one in group for batch in one.batches]
    active = store.active if store.active is not None and store.active.epoch == first.epoch else None
    if (active.end_offset if active is not None else first.start_offset) != first.base_offset:
        return False
    try:
        if active is not None and active.is_repairing:
            store.repair.append_repair(first.epoch, batches)
            return True
        if active is None:
            active = store.start_epoch(first.epoch, first.start_offset, engine=view.engine(first.epoch))
        needed_bytes = padded_bytes(group)
        if not active.has_room(needed_bytes):
            store.ensure_space(needed_bytes)
    except DiskFullError as error:
        log.warning("%s: cannot store the owner's batches now, fetching them later: %s", store.directory.name, error)
        return False
    store.append(batches)
    if synced:
        store.sync()
    return True


def append_in_place(view: ReplicaLog, group: Sequence[Append]) -> None:
    """Write appends for which `has_room` has just returned True, without a sync.

    Raises:
        StorageError: the disk failed.
    """
    view.store.append(group[0].batches if len(group) == 1 else [batch for one in group for batch in one.batches])


def perform(view: ReplicaLog, effect: Step) -> bool:
    """Carry out a write other than an append; return False if nothing was written, so that the core plans again.

    Raises:
        StorageError: the disk failed.
    """
    store = view.store
    match effect:
        case Truncate():
            store.truncate_epoch(effect.epoch, effect.end_offset)
        case SyncLog():
            if store.active is not None and store.active.epoch == effect.epoch:
                store.active.sync()
        case AppendPartialCopy():
            return _append_partial_copy(view, effect)
        case FinishPartialCopy():
            _finish_copy(view, effect)
        case DropCopy():
            log.info(
                "%s: epoch %d was compacted, so its copy on this node is fetched again",
                store.directory.name,
                effect.epoch,
            )
            store.copies.begin_anew(effect.epoch, effect.end_offset)
        case KeepProducers():
            return _keep_producers(view, effect)
        case SetAside():
            log.error(
                "%s: the copy of epoch %d on this node cannot be used: %s; renaming it to .bad-N and fetching the "
                "epoch again from another replica; check the disk if this recurs",
                store.directory.name,
                effect.epoch,
                effect.reason,
            )
            unreadable = store.unreadable_epoch
            if (
                effect.epoch == unreadable
                or effect.epoch in store.copies.partial_epochs
                or store.log_of(effect.epoch) is not None
            ):
                store.copies.set_aside(effect.epoch, effect.reason)
            if unreadable is not None:
                view.resume_partial_copies()
    return True


def _keep_producers(view: ReplicaLog, effect: KeepProducers) -> bool:
    try:
        if not view.producers.knows_at(effect.for_epoch):
            snapshot = ProducerSnapshot(effect.epoch, effect.offset, effect.digest, effect.payload)
            if effect.epoch != effect.for_epoch and not view.producers.counts(snapshot):
                return False  # The snapshot is not valid for this log, which may not reach its offset yet.
            view.store.save_producer_snapshot(
                effect.epoch, effect.offset, effect.digest, effect.payload, committed=effect.offset
            )
    except DiskFullError as error:
        log.warning(
            "%s: the producer state from another node cannot be stored now: %s", view.store.directory.name, error
        )
        return False
    return True


def _append_partial_copy(view: ReplicaLog, effect: AppendPartialCopy) -> bool:
    store = view.store
    end = (effect.epoch_end_offset, effect.epoch_end_digest)
    try:
        position = store.copies.begin_copy(
            effect.epoch,
            effect.start_offset,
            *end,
            start_digest=effect.start_digest,
            or_digests=view.decided_digests(effect.epoch) if view.epoch_end(effect.epoch) is None else (),
            engine=view.engine(effect.epoch),
        )
    except DiskFullError:
        return False
    except NotHeldError:
        log.warning(
            "%s: the partial copy of epoch %d is missing and cannot be resumed; planning its backfill again",
            store.directory.name,
            effect.epoch,
        )
        return False
    if position.offset == effect.epoch_end_offset and position.digest != effect.epoch_end_digest:
        return False  # A complete copy of another version was removed from the log meanwhile, so the core plans again.
    if not _continues(position, effect):
        log.info(
            "%s: the partial copy of epoch %d does not match its source at offset %d, fetching it again",
            store.directory.name,
            effect.epoch,
            position.offset,
        )
        store.copies.abandon_copy(effect.epoch)
        return False
    try:
        missing = [batch for batch in effect.batches if unpack_header(batch, typed=True).base_offset >= position.offset]
        store.copies.append_copy(effect.epoch, missing)
    except DiskFullError:
        return False
    except (DivergedError, NotHeldError) as error:
        # The core detects that and sets the copy aside, or retention has just removed the copy.
        log.warning(
            "%s: batches cannot be added to the partial copy of epoch %d: %s",
            store.directory.name,
            effect.epoch,
            error,
        )
    except StorageError:
        raise
    except ProtocolError as error:
        log.warning(
            "%s: received batches of epoch %d are invalid and are fetched again: %s",
            store.directory.name,
            effect.epoch,
            error,
        )
        return False
    return True


def _continues(position: LogPosition, effect: AppendPartialCopy) -> bool:
    """Return whether an earlier process's partial copy can be continued with, or already covers, the received batches.

    It ends at or before the first of them, at the end of one of them, or after the last.
    """
    if position.offset <= effect.base_offset:
        return True
    headers = [unpack_header(batch, typed=True) for batch in effect.batches]
    ends = [(header.end_offset, header.digest) for header in headers]
    return position in ends or position.offset > ends[-1][0]


def _finish_copy(view: ReplicaLog, effect: FinishPartialCopy) -> None:
    try:
        if view.store.copies.copy_position(effect.epoch) is not None:
            view.store.copies.finish_copy(effect.epoch, effect.decided)
    except NotHeldError as error:
        log.warning(
            "%s: the partial copy of epoch %d cannot be completed: %s", view.store.directory.name, effect.epoch, error
        )
    except DivergedError as error:  # The core then fetches the epoch again.
        log.warning("%s: fetching epoch %d again: %s", view.store.directory.name, effect.epoch, error)
        view.store.copies.abandon_copy(effect.epoch)
    view.resume_partial_copies()


INLINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger group always goes to a worker: its copy alone would take about a millisecond."""

LARGE_BYTES: Final = 64 * 1024
"""Handing a smaller write to a worker costs more than the copy itself, even into slow memory."""

WORTH_S: Final = 150e-6
"""While large writes are slow, a large one that is expected to take longer than this goes to a worker."""

SLOW_S_PER_BYTE: Final = 0.5e-9
"""Large writes are slow if they take longer than this for each byte, that is, below 2 GB/s."""

TRIED_S: Final = 0.05
"""Minimum time between two such writes that the event loop makes nevertheless, to measure their speed again."""

TRIED_SHARE: Final = 0.02
"""Maximum share of the event loop's time for these writes, which lengthens the time between two of them."""

SLOW_S: Final = 0.005
"""After a write on the event loop that took longer than this because the thread slept, workers write for `PAUSE_S`."""

PAUSE_S: Final = 0.5

_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)


class InlineWrites:
    """Decides whether the event loop writes an append itself, for all partitions of a node.

    Times are in seconds, of the caller's clock.
    """

    def __init__(self) -> None:
        self._paused_until_s = 0.0
        self._s_per_byte = 0.0
        """Estimated seconds per byte of a large write, biased towards fast writes: a slow one may have been preempted.
        """
        self._measured_s = 0.0

    def allows(self, size_bytes: int, now_s: float) -> bool:
        """Return whether the event loop may write a group of this size itself."""
        if now_s < self._paused_until_s or size_bytes > INLINE_BYTES_MAX:
            return False
        if size_bytes < LARGE_BYTES or self._s_per_byte <= SLOW_S_PER_BYTE:
            return True
        expected_s = size_bytes * self._s_per_byte
        return expected_s <= WORTH_S or now_s >= self._measured_s + max(TRIED_S, expected_s / TRIED_SHARE)

    def took(self, size_bytes: int, seconds: float, now_s: float, *, sleeps_before: int) -> None:
        """Record the duration of an inline write, at its end; `sleeps_before` is `sleeps()` at its beginning."""
        if size_bytes >= LARGE_BYTES:
            taken, known = seconds / size_bytes, self._s_per_byte
            self._s_per_byte = taken if taken < known else known + (taken - known) / 8
            self._measured_s = now_s
        if seconds > SLOW_S and sleeps() != sleeps_before:
            self._paused_until_s = now_s + PAUSE_S


def sleeps() -> int:
    """Return a counter that changes if this thread has waited since the last call.

    If the system does not count per thread, it always changes.
    """
    return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else time.perf_counter_ns()
