"""Logs of one replica of several, with a chain to go with them."""

from __future__ import annotations

from pathlib import Path

from tests.broker.faulty_disk import FaultyDisk
from tests.broker.storage.build import batch, stamp

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import Append
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb

ALONE = ("a",)
THREE = ("a", "b", "c")


def chain_of(*ends: tuple[int, int], placement: tuple[str, ...] = THREE, flush: pb.Flush = pb.ALWAYS) -> EpochChain:
    """Return a chain whose decided epochs end at these offsets and digests."""
    chain = EpochChain(pb.EpochDescriptor(placement=placement, ack_quorum=1, flush=flush))
    for end_offset, end_digest in ends:
        active = chain.active
        value = pb.EpochDecision(
            epoch=active.epoch,
            end_offset=end_offset,
            end_digest=end_digest,
            previous_hash=chain.previous_hash,
            next=pb.EpochDescriptor(
                epoch=active.epoch + 1,
                owner="a",
                placement=placement,
                ack_quorum=1,
                start_offset=end_offset,
                flush=flush,
            ),
        )
        chain.extend(value.SerializeToString())
    return chain


def open_log(disk: FaultyDisk, home: Path) -> PartitionLog:
    """Open the log of the one partition below `home`."""
    return PartitionLog.open(Disk(fs=disk), home, topic="t", topic_id=b"T" * 16, partition=0, segment_bytes=64 * 1024)


def view_of(store: PartitionLog, chain: EpochChain, *, log_start: int | None = None) -> ReplicaLog:
    """Look at a log as node `a`."""
    return ReplicaLog.open(store, chain, node_id="a", log_start=log_start)


def group(offset: int, digest: int, *bodies: bytes, epoch: int = 0, start_offset: int = 0) -> Append:
    """Return an append of stamped batches of one record each."""
    batches = stamp([batch(body) for body in bodies], offset=offset, digest=digest, epoch=epoch)
    return Append(epoch, start_offset, offset, offset + len(bodies), [memoryview(one) for one in batches])


def write_epoch(store: PartitionLog, epoch: int, *bodies: bytes) -> tuple[int, int]:
    """Begin an epoch where the log ends, append and sync; return where it ends."""
    store.start_epoch(epoch, store.end_offset)
    for body in bodies:
        one = stamp([batch(body)], offset=store.end_offset, digest=store.end_digest, epoch=epoch)
        store.ensure_space(4096)
        store.append(one)
        store.sync()
    return store.end_offset, store.end_digest


def damage(store: PartitionLog, epoch: int, body: bytes) -> None:
    """Change a byte of a batch's body on the disk of a log that is closed."""
    (path,) = (store.directory / f"epoch-{epoch:08d}").glob("*.seg")
    raw = bytearray(path.read_bytes())
    raw[raw.index(body)] ^= 1
    path.write_bytes(raw)


def reopened(disk: FaultyDisk, home: Path, *, broken: tuple[int, bytes] | None = None) -> None:
    """Write two epochs of three batches, close the log, perhaps with damage."""
    store = open_log(disk, home)
    write_epoch(store, 0, b"zero", b"one", b"two")
    write_epoch(store, 1, b"three", b"four", b"five")
    store.close()
    if broken is not None:
        damage(store, *broken)


def decided(disk: FaultyDisk, home: Path) -> tuple[int, int]:
    """Return the end of epoch 0."""
    store = open_log(disk, home)
    end = store.epoch_end(0, 0)
    store.close()
    return end
