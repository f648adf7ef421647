"""Epochs as they were decided, whatever a node has of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, batch, needed, stamp
from tests.broker.storage.logs import open_partition
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.partition.partition_dirs import epoch_dir_name, partition_dir_name
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import unpack_header

DIRECTORY = HOME / partition_dir_name("events", TOPIC_ID, PARTITION)


@dataclass(frozen=True)
class DecidedEpoch:
    epoch: int
    start_offset: int
    batches: list[bytes]

    @property
    def end_offset(self) -> int:
        return unpack_header(self.batches[-1]).end_offset if self.batches else self.start_offset

    @property
    def end_digest(self) -> int:
        return unpack_header(self.batches[-1]).digest if self.batches else 0

    def behind(self, offset: int) -> list[bytes]:
        """The batches from the one that begins at `offset` on."""
        return [one for one in self.batches if unpack_header(one).base_offset >= offset]


def decided(
    random: Random, *, epochs: int, batches_max: int = 12, batches_min: int = 0, bytes_max: int = 900
) -> list[DecidedEpoch]:
    """Contiguous epochs 0, 1, …; some of them may be empty."""
    found: list[DecidedEpoch] = []
    offset = 0
    for epoch in range(epochs):
        group = [
            batch(random.randbytes(random.randint(1, bytes_max)), records=random.randint(1, 3))
            for _ in range(random.randint(batches_min, batches_max))
        ]
        found.append(DecidedEpoch(epoch, offset, [bytes(one) for one in stamped(group, epoch, offset)]))
        offset = found[-1].end_offset
    return found


def stamped(group: list[bytearray], epoch: int, offset: int, digest: int = 0) -> list[bytearray]:
    return stamp(group, offset=offset, digest=digest, epoch=epoch)


def fill(log: PartitionLog, epoch: DecidedEpoch) -> bool:
    position = log.copies.begin_copy(epoch.epoch, epoch.start_offset, epoch.end_offset, epoch.end_digest)
    for one in epoch.behind(position.offset):
        log.copies.append_copy(epoch.epoch, [one])
    return log.copies.finish_copy(epoch.epoch)


def copy(log: PartitionLog, batches: list[bytes]) -> None:
    """Append as a replica does."""
    for one in batches:
        log.ensure_space(needed([bytearray(one)]))
        log.append([one])


def whole(sim: SimDisk, history: Sequence[DecidedEpoch]) -> PartitionLog:
    """Return a log of all of it."""
    log = open_partition(sim)
    for one in history:
        log.start_epoch(one.epoch, one.start_offset)
        copy(log, one.batches)
        log.sync()
    return log


def rot(sim: SimDisk, epoch: DecidedEpoch, victim: int) -> None:
    """Flip a bit of a batch and lose the index that would tell where its segment ended."""
    raw = epoch.batches[victim]
    for path in sim.files(DIRECTORY / epoch_dir_name(epoch.epoch), ".seg"):
        at = bytes(sim.node(path).current).find(raw[:128])
        if at >= 0:
            sim.node(path).current[at + 130] ^= 1
            sim.node(path).sync()
            if sim.exists(path.with_suffix(".idx")):
                sim.unlink(path.with_suffix(".idx"))
                sim.sync_dir(path.parent)
            return
    raise AssertionError("the batch is missing")
