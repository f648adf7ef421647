"""What a replica orders to be written, carried out on the partition's I/O worker (or, while that is quick, the loop).

Every write is durable when its function returns, as far as its epoch asks for it. `False` means that there was no
space and nothing was written. Whatever else goes wrong is raised, and final: the node stops.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidelog_broker.core.replication.effects import (
    Append,
    AppendFill,
    DropCopy,
    FinishFill,
    KeepProducers,
    SetAside,
    SyncLog,
    Truncate,
)
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.io.errors import DiskFullError, DivergedError, NotHeldError, StorageError
from tidelog_broker.storage.partition.copied import LogPosition
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_broker.storage.segment.layout import padded
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

Step = Truncate | SyncLog | AppendFill | FinishFill | SetAside | DropCopy | KeepProducers
"""A write that is no append: each is carried out by itself."""

LogWrite = Append | Step


def has_room(view: ReplicaLog, first: Append, size_bytes: int) -> bool:
    """Whether an append needs no space, segment or epoch to be made first; `size_bytes` with padding."""
    active = view.store.active
    return (
        active is not None
        and (active.epoch, active.end_offset) == (first.epoch, first.base_offset)
        and not active.is_repairing
        and active.has_room(size_bytes)
    )


def padded_bytes(group: Sequence[Append]) -> int:
    """Return the space that appends take in a segment."""
    size_bytes = 0
    for one in group:
        for batch in one.batches:
            size_bytes += padded(len(batch))
    return size_bytes


def append(view: ReplicaLog, group: Sequence[Append], *, synced: bool) -> bool:
    """Write appends that continue each other as one, and sync once; False when they find no space.

    An append that does not continue the log is one whose predecessor found no space.

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
        log.warning("%s: no space for what the owner sends: %s", store.directory.name, error)
        return False
    store.append(batches)
    if synced:
        store.sync()
    return True


def append_in_place(view: ReplicaLog, group: Sequence[Append]) -> None:
    """Write appends for which `has_room` has just been true, without a sync.

    Raises:
        StorageError: the disk failed.
    """
    view.store.append(group[0].batches if len(group) == 1 else [batch for one in group for batch in one.batches])


def perform(view: ReplicaLog, effect: Step) -> bool:
    """Do what is no append.

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
        case AppendFill():
            return _fill(view, effect)
        case FinishFill():
            _finish_fill(view, effect)
        case DropCopy():
            log.info(
                "%s: the copy of epoch %d is fetched anew: it has been compacted", store.directory.name, effect.epoch
            )
            store.copies.begin_anew(effect.epoch, effect.end_offset)
        case KeepProducers():
            return _keep_producers(view, effect)
        case SetAside():
            log.error("%s: %s", store.directory.name, effect.reason)
            unreadable = store.unreadable_epoch
            if (
                effect.epoch == unreadable
                or effect.epoch in store.copies.fill_epochs
                or store.log_of(effect.epoch) is not None
            ):
                store.copies.set_aside(effect.epoch, effect.reason)
            if unreadable is not None:
                view.go_on_filling()
    return True


def _keep_producers(view: ReplicaLog, effect: KeepProducers) -> bool:
    try:
        if not view.producers.knows_at(effect.for_epoch):
            snapshot = ProducerSnapshot(effect.epoch, effect.offset, effect.digest, effect.payload)
            if effect.epoch != effect.for_epoch and not view.producers.counts(snapshot):
                return False  # the log here has not come so far yet
            view.store.save_producer_snapshot(
                effect.epoch, effect.offset, effect.digest, effect.payload, committed=effect.offset
            )
    except DiskFullError as error:
        log.warning("%s: %s", view.store.directory.name, error)
        return False
    return True


def _fill(view: ReplicaLog, effect: AppendFill) -> bool:
    store = view.store
    end = (effect.epoch_end_offset, effect.epoch_end_digest)
    try:
        position = store.copies.begin_fill(
            effect.epoch,
            effect.start_offset,
            *end,
            start_digest=effect.start_digest,
            or_digests=view.decided_digests(effect.epoch) if view.epoch_end(effect.epoch) is None else (),
        )
    except DiskFullError:
        return False
    except NotHeldError as error:
        # What was to be gone on with is gone: the core looks again at what is there.
        log.warning("%s: %s", store.directory.name, error)
        return False
    if position.offset == effect.epoch_end_offset and position.digest != effect.epoch_end_digest:
        return False  # a whole copy of another version has left the log meanwhile: the core looks again
    if not _continues(position, effect):
        log.info("%s: what is here of epoch %d is of another version", store.directory.name, effect.epoch)
        store.copies.abandon_fill(effect.epoch)
        return False
    try:
        missing = [batch for batch in effect.batches if unpack_header(batch).base_offset >= position.offset]
        store.copies.append_fill(effect.epoch, missing)
    except DiskFullError:
        return False
    except (DivergedError, NotHeldError) as error:
        # The core sees that by itself, and orders the copy set aside; or retention has just ended the fill.
        log.warning("%s: %s", store.directory.name, error)
    except StorageError:
        raise
    except ProtocolError as error:
        log.warning("%s: what came of epoch %d is refused: %s", store.directory.name, effect.epoch, error)
        return False
    return True


def _continues(position: LogPosition, effect: AppendFill) -> bool:
    """Whether a copy that reaches further than the core knew, as a former run has left it, holds what has come."""
    if position.offset <= effect.base_offset:
        return True
    ends = [(header.end_offset, header.digest) for header in map(unpack_header, effect.batches)]
    return position in ends or position.offset > ends[-1][0]


def _finish_fill(view: ReplicaLog, effect: FinishFill) -> None:
    try:
        if view.store.copies.fill_position(effect.epoch) is not None:
            view.store.copies.finish_fill(effect.epoch, effect.decided)
    except NotHeldError as error:
        log.warning("%s: %s", view.store.directory.name, error)
    except DivergedError as error:  # the core looks at what is there, and fetches it again
        log.warning("%s: %s", view.store.directory.name, error)
        view.store.copies.abandon_fill(effect.epoch)
    view.go_on_filling()
