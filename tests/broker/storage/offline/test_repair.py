"""`log repair` leaves damage alone that other nodes can repair, and damage that no truncation can remove."""

from __future__ import annotations

import errno
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import damage, write_epoch
from tests.broker.storage.build import append, batch

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import DiskFullError, StorageError
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import open_node_dir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.offline.repair import Repair, repair
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb

ID = b"i" * 16


def rotten(
    path: Path, *, epoch: int, placement: tuple[str, ...] = ("me",), decided: bool = False, open_epoch: int = 1
) -> None:
    """Make a data directory with a log of two epochs, one of which has rotted, and what it knows of its replicas."""
    with closing(open_node_dir(path, node_id="me")) as home:
        store = PartitionLog.open(Disk(), home.partitions, topic="t", topic_id=ID, partition=0, segment_bytes=1 << 20)
        write_epoch(store, 0, b"zero", b"one", b"two")
        write_epoch(store, 1, b"three", b"four", b"five")
        store.close()
        damage(store, epoch, {0: b"one", 1: b"four"}[epoch])
        descriptor = pb.EpochDescriptor(epoch=open_epoch, placement=placement)
        with closing(TypedJournal.open(Disk().fs, home.fences, FENCES)) as fences:
            if not decided:
                fences.append([pb.FenceEntry(topic_id=ID, epoch=1, descriptor=descriptor)])
        with closing(TypedJournal.open(Disk().fs, home.meta_journal, CHAINS)) as chains:
            if decided:
                decision = pb.EpochDecision(epoch=0, end_offset=3, next=descriptor).SerializeToString()
                chains.append([pb.ChainEntry(topic_id=ID, genesis=pb.EpochDescriptor(placement=["me", "once"]))])
                chains.append([pb.ChainEntry(topic_id=ID, decision=decision)])


def test_missing_log_cannot_be_repaired(tmp_path: Path) -> None:
    rotten(tmp_path, epoch=1)
    (directory,) = (path for path in (tmp_path / "partitions").iterdir() if path.is_dir())
    shutil.rmtree(directory)
    found = one(tmp_path)
    assert (found.epoch, found.kept, found.damage) == (None, None, f"{directory} is missing")


def one(path: Path, *, apply: bool = True) -> Repair:
    (found,) = repair(path, apply=apply)
    return found


@pytest.mark.parametrize("decided", [False, True])
def test_log_with_other_replicas_is_not_truncated(tmp_path: Path, *, decided: bool) -> None:
    rotten(tmp_path, epoch=1, placement=("me", "you"), decided=decided)
    found = one(tmp_path)
    assert (found.others, found.epoch, found.kept) == (["you"], None, None)
    assert one(tmp_path).damage == found.damage, "it is as it was"


@pytest.mark.parametrize("decided", [False, True])
def test_newest_epoch_is_truncated(tmp_path: Path, *, decided: bool) -> None:
    rotten(tmp_path, epoch=1, decided=decided)
    told = one(tmp_path, apply=False)
    assert (told.epoch, told.end_offset, told.kept) == (1, 4, None)
    assert one(tmp_path, apply=False) == told, "nothing is done that was not asked for"
    kept = one(tmp_path).kept
    assert kept is not None
    assert (kept.name, (kept / "reason.txt").read_text().strip()) == ("epoch-00000001.bad-1", told.damage)
    assert list(repair(tmp_path, apply=True)) == []


def test_older_epoch_is_not_truncated(tmp_path: Path) -> None:
    rotten(tmp_path, epoch=0)
    found = one(tmp_path)
    assert (found.others, found.epoch, found.kept) == ([], None, None)


def test_epoch_with_a_decided_end_is_not_truncated(tmp_path: Path) -> None:
    """The next one has begun, and nothing was written to it yet."""
    rotten(tmp_path, epoch=1, open_epoch=2, decided=True)
    found = one(tmp_path)
    assert (found.others, found.epoch, found.kept) == ([], None, None)


def test_log_with_a_bad_segment_header_after_a_bad_batch_is_truncated_before_the_batch(tmp_path: Path) -> None:
    with closing(open_node_dir(tmp_path, node_id="me")) as home:
        store = PartitionLog.open(Disk(), home.partitions, topic="t", topic_id=ID, partition=0, segment_bytes=4096)
        store.start_epoch(0, 0)
        while store.epochs[0].segment_count < 4:
            append(store, [batch(b"%03d" % store.end_offset * 300)])
        store.close()
        descriptor = pb.EpochDescriptor(epoch=0, placement=["me"])
        with closing(TypedJournal.open(Disk().fs, home.fences, FENCES)) as fences:
            fences.append([pb.FenceEntry(topic_id=ID, epoch=0, descriptor=descriptor)])
    first, *_, last = sorted(store.epochs[0].directory.glob("*.seg"))
    for path, position in ((first, first.read_bytes().index(b"001001")), (last, 50)):
        raw = bytearray(path.read_bytes())
        raw[position] ^= 1
        path.write_bytes(raw)
    first.with_suffix(".idx").unlink()  # An index is never synced; without it the first reported damage is the gap.
    assert (one(tmp_path, apply=False).epoch, one(tmp_path, apply=False).end_offset) == (0, 1)
    assert one(tmp_path).kept is not None
    assert list(repair(tmp_path, apply=True)) == []


def test_full_disk_for_the_repair_marker_leaves_no_copy(tmp_path: Path) -> None:
    rotten(tmp_path, epoch=1)

    class Full(FaultyDisk):
        def open(self, path: Path, *, create: bool = False) -> File:
            if create and path.name == "repairing":
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().open(path, create=create)

    for _ in range(2):
        with pytest.raises(StorageError):
            list(repair(tmp_path, apply=True, fs=Full()))
    assert not list((tmp_path / "partitions").glob("*/*.bad-*"))
    assert one(tmp_path).kept is not None


def test_full_disk_for_the_copy_prevents_truncation(tmp_path: Path) -> None:
    rotten(tmp_path, epoch=1)
    before = one(tmp_path, apply=False)

    class Full(FaultyDisk):
        def open(self, path: Path, *, create: bool = False) -> File:
            if path.parent.suffix == NEW_SUFFIX:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().open(path, create=create)

    with pytest.raises(DiskFullError, match="cannot be copied before the repair"):
        list(repair(tmp_path, apply=True, fs=Full()))
    assert one(tmp_path, apply=False) == before
    assert one(tmp_path).kept is not None, "an incomplete copy does not prevent the repair"
