"""Repair of a stopped node's damaged logs that no other node can restore: `tidelog log repair`.

A running node fetches damaged records from other replicas. A partition with a single copy stays in LIMBO, because
acknowledged records are missing and only an operator may decide to continue without them. The newest epoch of such a
log is truncated at the damage, and a copy of it is kept. An older epoch must end where its successor begins, so it is
never truncated; its valid part can be read (`dump`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.directory.engine_marker import marked_engine
from tidelog_broker.storage.directory.epoch_dir import remove_epoch_dir
from tidelog_broker.storage.engine.store import SHARED
from tidelog_broker.storage.engines.stores import new_volume
from tidelog_broker.storage.io.errors import NodeDirError, StorageError, space_or_failure
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import NodeDir, is_new_dir, open_node_dir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.offline.verify import verify
from tidelog_broker.storage.partition.partition_dirs import (
    aside_dirs,
    copy_aside,
    epoch_dirs,
    partition_dir_name,
    stored_partitions,
)
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

_Key = tuple[bytes, int]


class _Rot(NamedTuple):
    """The first damage of a log: the damaged file or missing directory, and a text for the operator."""

    path: Path
    message: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A partition with a damaged log, and the repair that is possible on this node.

    Attributes:
        topic, partition, damage: the partition and its damage, for the operator.
        others: the other nodes that store the partition, from which this node restores it when it starts.
        epoch, end_offset: the newest epoch and where to truncate it; `epoch` is None if no repair is possible.
        kept: the copy of the damaged epoch; None until it is repaired.
    """

    topic: str
    partition: int
    damage: str
    others: Sequence[str] = ()
    epoch: int | None = None
    end_offset: int = 0
    kept: Path | None = None


def repair(path: Path, *, apply: bool, fs: FileSystem | None = None) -> Iterator[Repair]:
    """Check every partition in a stopped node's data directory; with `apply`, truncate those that can be repaired.

    Raises:
        NodeDirError: `path` is not a data directory, or its node is running.
        StorageError: the disk failed, or a journal is damaged.
    """
    files = fs or RealFileSystem()
    if is_new_dir(path, fs=files):
        raise NodeDirError(f"{path} is not the data directory of a node; give the path that the node gets as --data")
    with closing(open_node_dir(path, fs=files)) as home:
        known, volume = _open_epochs(files, home), new_volume(files, commit_log_dir=home.commit_log)
        for name in sorted(stored_partitions(files, home.partitions)):
            directory = home.partitions / partition_dir_name(*name)
            rot = _rot(files, directory)
            if rot is None and not _shares_files(files, directory):
                continue
            log = PartitionLog.open(
                volume,
                home.partitions,
                topic=name.topic,
                topic_id=name.topic_id,
                partition=name.partition,
                segment_bytes=MIB,
            )
            with closing(log):
                rot = rot or _rot_of_tail(log)
                if rot is None:
                    continue
                newest = known.get((name.topic_id, name.partition), pb.EpochDescriptor())
                others = [node for node in newest.placement if node != home.node_id]
                found = _look_at(log, rot, others, open_epoch=newest.epoch)
                yield _cut(files, log, found) if apply and found.epoch is not None else found


def _open_epochs(fs: FileSystem, home: NodeDir) -> dict[_Key, pb.EpochDescriptor]:
    """Return for each partition the epoch that has no decided end, as far as this node knows."""
    found: dict[_Key, pb.EpochDescriptor] = {}
    with closing(TypedJournal.open(fs, home.fences, FENCES)) as fences:
        for fence in fences.load():
            if fence.HasField("descriptor"):
                found[fence.topic_id, fence.partition] = fence.descriptor
    with closing(TypedJournal.open(fs, home.meta_journal, CHAINS)) as chains:
        for entry in chains.load():
            if entry.decision:
                found[entry.topic_id, entry.partition] = pb.EpochDecision.FromString(entry.decision).next
    return found


def _rot(fs: FileSystem, directory: Path) -> _Rot | None:
    """Verify a partition's log; return its first damage, or that its directory is missing; None if it is intact."""
    if not fs.exists(directory):
        return _Rot(directory, f"{directory} is missing")
    findings = (finding for report in verify(fs, directory) for finding in report.findings)
    first = next((one for one in findings if one.severity == "damage"), None)
    if first is None:
        return None
    return _Rot(first.path, f"{first.path} is damaged at byte {first.position}: {first.message}")


def _shares_files(fs: FileSystem, directory: Path) -> bool:
    """Return whether the newest records of a partition may be in the commit log."""
    epochs = epoch_dirs(fs, directory).values()
    return any(marked_engine(fs.list_dir(epoch)) == SHARED for epoch in epochs)


def _rot_of_tail(log: PartitionLog) -> _Rot | None:
    """Return the damage of a log whose segments are intact; None if its records in the commit log are, too."""
    damage = log.active.damage if log.active is not None else None
    if damage is None or log.limbo is None:
        return None
    return _Rot(damage.path, log.limbo)


def _look_at(log: PartitionLog, rot: _Rot, others: Sequence[str], *, open_epoch: int) -> Repair:
    """Return the damage of a log, and where it can be truncated: only in the epoch whose end is undecided."""
    found = Repair(log.name.topic, log.name.partition, log.limbo or rot.message, others)
    newest = log.active
    if others or newest is None or newest.epoch < open_epoch or log.unreadable_epoch is not None:
        return found
    # Truncation also removes the segments after the damage; their names are in the order of their offsets.
    damage = newest.damage
    is_first = damage is not None and rot.path.parent == damage.path.parent and rot.path.name >= damage.path.name
    if not is_first and not newest.is_repairing:
        # A full segment is damaged, which a start does not scan, so truncation would not remove the damage.
        return found
    end = log.repair.repairable_end(newest.epoch)
    return found if end is None else _at(found, newest.epoch, end.offset)


def _at(found: Repair, epoch: int, end_offset: int, copy: Path | None = None) -> Repair:
    return Repair(found.topic, found.partition, found.damage, (), epoch, end_offset, copy)


def _cut(fs: FileSystem, log: PartitionLog, found: Repair) -> Repair:
    """Copy the damaged epoch beside the log, unless an interrupted run has made the copy, and truncate the epoch."""
    assert found.epoch is not None
    newest = log.active
    assert newest is not None
    if newest.is_repairing:
        copy = aside_dirs(fs, log.directory)[-1]
    else:
        try:
            copy = copy_aside(fs, newest.directory, found.damage)
        except OSError as error:
            raise space_or_failure(f"{newest.directory} cannot be copied before the repair", error) from error
        try:
            log.repair.truncate_to_valid_prefix(found.epoch)
        except StorageError:
            if not newest.is_repairing:  # Nothing was truncated; without this, each attempt would leave another copy.
                with contextlib.suppress(OSError):
                    remove_epoch_dir(fs, copy)
            raise
    log.repair.finish_repair(found.epoch)
    return _at(found, found.epoch, found.end_offset, copy)
