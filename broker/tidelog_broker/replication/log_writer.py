"""Execution of a replica's log writes, on the partition's I/O worker or, while writes are fast, on the event loop.

Every write is durable when its function returns, as far as its epoch requires. `False` means that there was no space
and nothing was written. Any other failure is raised, and final: the node stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

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
    """Write consecutive appends as one, and sync once; return False if there is no space.

    An append that does not continue the log follows one for which there was no disk space.

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
            active = store.start_epoch(first.epoch, first.start_offset)
        needed_bytes = padded_bytes(group)
        if not active.has_room(needed_bytes):
            store.ensure_space(needed_bytes)
    except DiskFullError as error:
        log.warning("%s: no space for the owner's batches, fetching them later: %s", store.directory.name, error)
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
    """Carry out a write other than an append.

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
                "%s: fetching the copy of epoch %d again, because it was compacted", store.directory.name, effect.epoch
            )
            store.copies.begin_anew(effect.epoch, effect.end_offset)
        case KeepProducers():
            return _keep_producers(view, effect)
        case SetAside():
            log.error("%s: %s", store.directory.name, effect.reason)
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
                return False  # The log does not reach this offset yet.
            view.store.save_producer_snapshot(
                effect.epoch, effect.offset, effect.digest, effect.payload, committed=effect.offset
            )
    except DiskFullError as error:
        log.warning("%s: %s", view.store.directory.name, error)
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
        )
    except DiskFullError:
        return False
    except NotHeldError as error:
        # The copy to be resumed is missing, so the core plans again.
        log.warning("%s: %s", store.directory.name, error)
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
        missing = [batch for batch in effect.batches if unpack_header(batch).base_offset >= position.offset]
        store.copies.append_copy(effect.epoch, missing)
    except DiskFullError:
        return False
    except (DivergedError, NotHeldError) as error:
        # The core detects that and sets the copy aside, or retention has just removed the copy.
        log.warning("%s: %s", store.directory.name, error)
    except StorageError:
        raise
    except ProtocolError as error:
        log.warning("%s: received batches of epoch %d are refused: %s", store.directory.name, effect.epoch, error)
        return False
    return True


def _continues(position: LogPosition, effect: AppendPartialCopy) -> bool:
    """Return whether an earlier process's partial copy, longer than the core expected, has the received batches."""
    if position.offset <= effect.base_offset:
        return True
    ends = [(header.end_offset, header.digest) for header in map(unpack_header, effect.batches)]
    return position in ends or position.offset > ends[-1][0]


def _finish_copy(view: ReplicaLog, effect: FinishPartialCopy) -> None:
    try:
        if view.store.copies.copy_position(effect.epoch) is not None:
            view.store.copies.finish_copy(effect.epoch, effect.decided)
    except NotHeldError as error:
        log.warning("%s: %s", view.store.directory.name, error)
    except DivergedError as error:  # The core then fetches the epoch again.
        log.warning("%s: %s", view.store.directory.name, error)
        view.store.copies.abandon_copy(effect.epoch)
    view.resume_partial_copies()
