"""Which epoch of a partition is active, and how this incarnation of the node gets one of its own.

A restarted node never resumes its epoch. When a partition is first used after a start, the node takes it
over: SEAL, OPEN_EPOCH and METADATA_UPDATE, here with itself as the only replica, through the same journals
and the same value that several replicas will agree on. Each step is durable before the next begins, and
whatever was already accepted is adopted unchanged, so a crash between any two lines is repaired by the next
take-over.

A takeover fits three synced journal appends: promise and accept in one (one replica is its own quorum),
then the decision, then the descriptor of the new epoch together with the release of the old fence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from tidelog_broker.core.chain import ChainError, EpochChain
from tidelog_broker.core.owner import Owner
from tidelog_broker.core.ports import Plan
from tidelog_broker.core.producers import ProducerTable
from tidelog_broker.core.takeover import Promise, choose_value, next_ballot
from tidelog_broker.offload import Offload
from tidelog_broker.storage.errors import DamagedError
from tidelog_broker.storage.fences import FenceJournal
from tidelog_broker.storage.meta_journal import MetaJournal
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader

log = logging.getLogger(__name__)

PartitionKey = tuple[bytes, int]

JOURNAL_KEY = 0
"""All journal appends go through one I/O worker, so they are in order."""


class StoredPartition(Protocol):
    """What a take-over needs to know of a partition."""

    name: str
    topic: pb.TopicRecord
    index: int
    io_key: int
    log: PartitionLog


class Epochs:
    """The chains and fences of every partition of this node."""

    def __init__(
        self, *, node_id: str, incarnation: int, meta: MetaJournal, fences: FenceJournal, offload: Offload
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._meta = meta
        self._fences = fences
        self._offload = offload
        self._chains: dict[PartitionKey, EpochChain] = {}

    def load(self, entries: Sequence[pb.ChainEntry]) -> None:
        """Take the chains from the metadata journal's entries, in their order.

        Raises:
            DamagedError: an entry does not continue its chain.
        """
        for entry in entries:
            key = (entry.topic_id, entry.partition)
            match entry.WhichOneof("entry"):
                case "genesis":
                    self._chains[key] = EpochChain(entry.genesis)
                case "decision":
                    if key not in self._chains:
                        raise DamagedError(f"the metadata journal decides about partition {key[1]} without a genesis")
                    try:
                        self._chains[key].extend(entry.decision)
                    except ChainError as error:
                        raise DamagedError(f"the metadata journal is damaged: {error}") from error
                case "forgotten":
                    self._chains.pop(key, None)
                case _:
                    raise DamagedError("the metadata journal has an entry of a kind that this version does not know")

    def knows(self, topic_id: bytes, partition: int) -> bool:
        """Whether a partition has been used before: then its log must be here."""
        return (topic_id, partition) in self._chains

    def active_epoch(self, partition: StoredPartition) -> int:
        """Return the number of the newest epoch that is known of a partition, 0 for a new one."""
        chain = self._chains.get((partition.topic.topic_id, partition.index))
        return chain.active.epoch if chain is not None else 0

    async def take_over(self, partition: StoredPartition) -> Owner:
        """Open an epoch owned by this incarnation and return its owner state, exact about producers.

        Raises:
            ProtocolError: LIMBO when the log is damaged where it must not be.
            OSError: a journal or the log cannot be written.
        """
        key = (partition.topic.topic_id, partition.index)
        if partition.log.limbo is not None:
            raise ProtocolError(
                pb.LIMBO, f"{partition.name} takes no records: {partition.log.limbo}; see `tidelog log verify`"
            )
        chain = self._chains.get(key)
        if chain is None:
            chain = await self._begin(key)
        while chain.active.owner_incarnation != self._incarnation:
            await self._replace(key, chain, partition)
        return await self._offload.call(partition.io_key, _make_owner, chain, partition)

    async def forget(self, topic_id: bytes, partitions: int) -> None:
        """Forget the chains of a deleted topic, durably, and then its fences."""
        gone = {
            index: chain.active.epoch
            for index in range(partitions)
            if (chain := self._chains.pop((topic_id, index), None)) is not None
        }
        if gone:
            await self._record([pb.ChainEntry(topic_id=topic_id, partition=index, forgotten=True) for index in gone])
            await self._fence(
                [
                    pb.FenceEntry(topic_id=topic_id, partition=index, epoch=epoch, dropped=True)
                    for index, epoch in gone.items()
                ]
            )

    async def _begin(self, key: PartitionKey) -> EpochChain:
        """Epoch 0 of a partition that has never been used: the descriptor first, then the genesis.

        A descriptor that a crash left without its genesis is adopted, and then taken over like any other.
        """
        fence = self._fences.get(key, 0)
        if fence is not None:
            descriptor = fence.descriptor
        else:
            descriptor = pb.EpochDescriptor(
                epoch=0,
                owner=self._node_id,
                owner_incarnation=self._incarnation,
                placement=[self._node_id],
                ack_quorum=1,
                start_offset=0,
            )
            await self._fence([pb.FenceEntry(topic_id=key[0], partition=key[1], epoch=0, descriptor=descriptor)])
        genesis = pb.ChainEntry(topic_id=key[0], partition=key[1], genesis=descriptor)
        await self._record([genesis])
        chain = self._chains[key] = EpochChain(descriptor)
        return chain

    async def _replace(self, key: PartitionKey, chain: EpochChain, partition: StoredPartition) -> None:
        """Decide the end of the active epoch of a dead incarnation and name this one the next owner."""
        epoch = chain.active.epoch
        fence = self._fences.get(key, epoch)
        end_offset, end_digest = _epoch_end(chain, partition)
        promise = Promise(
            node_id=self._node_id,
            end_offset=end_offset,
            end_digest=end_digest,
            accepted=fence.accepted if fence is not None and fence.accepted_value else None,
            accepted_value=fence.accepted_value if fence is not None else b"",
        )
        ballot = next_ballot(
            fence.promised if fence is not None else None, node_id=self._node_id, incarnation=self._incarnation
        )
        value = choose_value(
            [promise],
            descriptor=chain.active,
            previous_hash=chain.previous_hash,
            plan=Plan(self._node_id, (self._node_id,), 1),
            owner_incarnation=self._incarnation,
        )
        accepted = pb.FenceEntry(
            topic_id=key[0],
            partition=key[1],
            epoch=epoch,
            descriptor=chain.active,
            promised=ballot,
            accepted=ballot,
            accepted_value=value,
        )
        await self._fence([accepted])
        await self._record([pb.ChainEntry(topic_id=key[0], partition=key[1], decision=value)])
        decision = chain.extend(value)
        opened = pb.FenceEntry(topic_id=key[0], partition=key[1], epoch=epoch + 1, descriptor=decision.next)
        dropped = pb.FenceEntry(topic_id=key[0], partition=key[1], epoch=epoch, dropped=True)
        await self._fence([opened, dropped])
        log.info("%s: epoch %d ends at %d, epoch %d begins", partition.name, epoch, decision.end_offset, epoch + 1)

    async def _fence(self, entries: list[pb.FenceEntry]) -> None:
        await self._offload.call(JOURNAL_KEY, self._fences.append, entries)

    async def _record(self, entries: list[pb.ChainEntry]) -> None:
        await self._offload.call(JOURNAL_KEY, self._meta.append, entries)


def _epoch_end(chain: EpochChain, partition: StoredPartition) -> tuple[int, int]:
    """Return offset and digest at the end of the active epoch's log here; an epoch nobody wrote to has no log.

    Raises:
        ProtocolError: LIMBO when log and chain do not belong together.
    """
    store, descriptor = partition.log, chain.active
    end = store.epoch_end(descriptor.epoch, descriptor.start_offset)
    if end[0] != store.end_offset:
        raise ProtocolError(
            pb.LIMBO,
            f"{partition.name}: the log ends at {store.end_offset}, but epoch {descriptor.epoch} at {end[0]}: "
            "the metadata journal and the log do not belong together",
        )
    return end


def _make_owner(chain: EpochChain, partition: StoredPartition) -> Owner:
    """Rebuild what the log says about producers. Runs on an I/O worker."""
    table, last_timestamp_us, headers = _nearest_snapshot(partition.log)
    for header in headers:
        table.apply(header)
        last_timestamp_us = header.append_timestamp_us
    return Owner(chain.active, producers=table, last_append_timestamp_us=last_timestamp_us)


def _nearest_snapshot(store: PartitionLog) -> tuple[ProducerTable, int, Iterator[BatchHeader]]:
    """Return the producers at the newest snapshot, the append timestamp there, and the headers behind it.

    Without a snapshot that counts, these are no producers and everything there is. A snapshot can be ahead of a log
    whose unsynced tail was lost, and the log can have grown past its offset with other records since: it counts only
    if the batch that ends there carries its epoch and digest.
    """
    snapshot = store.load_producer_snapshot()
    if snapshot is not None and store.start_offset < snapshot.offset <= store.end_offset:
        headers = store.scan_headers(snapshot.offset - 1)
        last = next(headers, None)
        if last is not None and (last.epoch, last.end_offset, last.digest) == snapshot[:3]:
            return ProducerTable.restore(snapshot.payload), last.append_timestamp_us, headers
    return ProducerTable(), 0, store.scan_headers(store.start_offset)
