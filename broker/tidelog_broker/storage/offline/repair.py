"""Putting a stopped node's damaged logs in order, where no other node can: `tidelog log repair`.

A node repairs by itself what others hold: it fetches that from them. A partition of which it has the only copy stays
in limbo, since what was acknowledged is missing, and only a person can say that it is to go on without. So the newest
epoch of such a log is cut in front of its damage, and what was there is kept aside. An older epoch ends where its
successor begins, by a decision: what is sound of it can be read (`dump`), but not be cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.io.errors import NodeDirError, StorageError, space_or_failure
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import NodeDir, is_new_dir, open_node_dir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.offline.verify import verify
from tidelog_broker.storage.partition.partition_dirs import (
    aside_dirs,
    keep_aside,
    partition_dir_name,
    stored_partitions,
)
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB

_Key = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class Repair:
    """A partition whose log is damaged, and what can be done about it here.

    Attributes:
        topic, partition, damage: which one, and what is wrong with it, for a person.
        others: the other nodes that hold it, and give it back when this one starts.
        epoch, end_offset: the newest epoch, and where it is to be cut; None where nothing can be done.
        kept: where what was there is kept, once it is repaired.
    """

    topic: str
    partition: int
    damage: str
    others: Sequence[str] = ()
    epoch: int | None = None
    end_offset: int = 0
    kept: Path | None = None


def repair(path: Path, *, apply: bool, fs: FileSystem | None = None) -> Iterator[Repair]:
    """Look at every partition in a stopped node's data directory; cut what can be cut, if told to `apply` it.

    Raises:
        NodeDirError: it is none, or its node is running.
        StorageError: the disk failed, or a journal is damaged.
    """
    files = fs or RealFileSystem()
    if is_new_dir(path, fs=files):
        raise NodeDirError(f"{path} is not the data directory of a node; give what `--data` says when it starts")
    with closing(open_node_dir(path, fs=files)) as home:
        known = _open_epochs(files, home)
        for name in sorted(stored_partitions(files, home.partitions)):
            rot = _rot(files, home.partitions / partition_dir_name(*name))
            if rot is None:
                continue
            log = PartitionLog.open(
                Disk(fs=files),
                home.partitions,
                topic=name.topic,
                topic_id=name.topic_id,
                partition=name.partition,
                segment_bytes=MIB,
            )
            with closing(log):
                newest = known.get((name.topic_id, name.partition), pb.EpochDescriptor())
                others = [node for node in newest.placement if node != home.node_id]
                found = _look_at(log, rot, others, open_epoch=newest.epoch)
                yield _cut(files, log, found) if apply and found.epoch is not None else found


def _open_epochs(fs: FileSystem, home: NodeDir) -> dict[_Key, pb.EpochDescriptor]:
    """Return the epoch of each partition whose end is not decided, as far as this node knows."""
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


def _rot(fs: FileSystem, directory: Path) -> str | None:
    """Read all of a partition's log; return what is damaged first, None when nothing is."""
    if not fs.exists(directory):
        return f"{directory} is missing"
    findings = (finding for report in verify(fs, directory) for finding in report.findings)
    first = next((one for one in findings if one.severity == "damage"), None)
    return f"{first.path} is damaged at byte {first.position}: {first.message}" if first is not None else None


def _look_at(log: PartitionLog, rot: str, others: Sequence[str], *, open_epoch: int) -> Repair:
    """Return what is wrong with a log, and where it can be cut: only in the epoch whose end is not decided."""
    found = Repair(log.name.topic, log.name.partition, log.limbo or rot, others)
    newest = log.active
    if others or newest is None or newest.epoch < open_epoch or log.unreadable_epoch is not None:
        return found
    is_first = newest.damage is not None and rot.startswith(f"{newest.damage.path} ")
    if not is_first and not newest.is_repairing:
        return found  # in a full segment, which no start reads: it would be damaged still behind the cut
    end = log.repair.repairable_end(newest.epoch)
    return found if end is None else _at(found, newest.epoch, end.offset)


def _at(found: Repair, epoch: int, end_offset: int, kept: Path | None = None) -> Repair:
    return Repair(found.topic, found.partition, found.damage, (), epoch, end_offset, kept)


def _cut(fs: FileSystem, log: PartitionLog, found: Repair) -> Repair:
    """Cut, with a copy of what was there beside the log; a run that was cut short has made that already."""
    assert found.epoch is not None
    newest = log.active
    assert newest is not None
    if newest.is_repairing:
        kept = aside_dirs(fs, log.directory)[-1]
    else:
        try:
            kept = keep_aside(fs, newest.directory, found.damage)
        except OSError as error:
            raise space_or_failure(f"{newest.directory} cannot be kept aside", error) from error
        try:
            log.repair.cut_to_good(found.epoch)
        except StorageError:
            if not newest.is_repairing:  # nothing has changed: each try would leave one more copy
                with contextlib.suppress(OSError):
                    remove_epoch_dir(fs, kept)
            raise
    log.repair.finish_repair(found.epoch)
    return _at(found, found.epoch, found.end_offset, kept)
