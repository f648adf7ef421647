"""The journalled state of every partition: its chain of epochs, and the ballots of the newest one.

The genesis of a chain (its first epoch) is in the topic's record in `__meta`. It is journalled together with the first
decision, which would be useless without it. Until then the stored fence of the first epoch contains the genesis that
this node's promises concern, and that genesis takes precedence over the topic's record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tidelog_broker.base.group_commit import GroupCommit
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.chain import ChainError, EpochChain
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.storage.io.errors import DamagedError, DiskFullError
from tidelog_broker.storage.node.fences import fence_key
from tidelog_broker.storage.node.journal import JOURNAL_REMEDY
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb

EntryT = TypeVar("EntryT")

FENCES_WORKER: Final = 0
CHAINS_WORKER: Final = 1
"""Keys of the appends to the journals of fences and of chains: one I/O worker makes all appends to a journal, in order.
"""


class Chains:
    """Loads the chains and fences of a node at its start, and makes all writes to both journals.

    Args:
        failed: called if a journal fails; the node must stop.
        full: called if a journal has no space.
    """

    def __init__(
        self,
        meta: TypedJournal[pb.ChainEntry],
        fences: TypedJournal[pb.FenceEntry],
        *,
        offload: Offload,
        failed: Callable[[BaseException], None],
        full: Callable[[DiskFullError], None],
    ) -> None:
        self._loaded: dict[PartitionKey, EpochChain] = {}
        self._fences = {fence_key(fence): fence for fence in fences.load()}
        self._journalled: set[PartitionKey] = set()
        self._chain_writes: GroupCommit[pb.ChainEntry] = GroupCommit(
            meta.append, mark=meta.mark, offload=offload, key=CHAINS_WORKER, failed=failed, full=full
        )
        self._fence_writes: GroupCommit[pb.FenceEntry] = GroupCommit(
            fences.append, mark=fences.mark, offload=offload, key=FENCES_WORKER, failed=failed, full=full
        )
        self.load(meta.load())

    def load(self, entries: Sequence[pb.ChainEntry]) -> None:
        """Load the chains from the metadata journal's entries, in order.

        Raises:
            DamagedError: an entry does not continue its chain.
        """
        for entry in entries:
            key = (entry.topic_id, entry.partition)
            match entry.WhichOneof("entry"):
                case "genesis":
                    self._loaded[key] = EpochChain(entry.genesis)
                    self._journalled.add(key)
                case "decision":
                    if key not in self._loaded:
                        raise DamagedError(
                            f"the metadata journal of this node has the end of an epoch of partition {key[1]} of topic "
                            f"id {key[0].hex()}, but lacks the partition's first epoch; {JOURNAL_REMEDY}"
                        )
                    try:
                        self._loaded[key].extend(entry.decision)
                    except ChainError as error:
                        raise DamagedError(
                            f"the metadata journal of this node has a decision that does not continue the epochs of "
                            f"partition {key[1]} of topic id {key[0].hex()}: {error}; {JOURNAL_REMEDY}"
                        ) from error
                case "forgotten":
                    self._loaded.pop(key, None)
                    self._journalled.discard(key)
                case _:
                    raise DamagedError(
                        "the metadata journal of this node has an entry of an unknown kind: use the newer build that "
                        "wrote it"
                    )

    def knows(self, topic_id: bytes, partition: int) -> bool:
        """Return whether this node has a chain of a partition."""
        return (topic_id, partition) in self._loaded

    def active(self, key: PartitionKey) -> pb.EpochDescriptor | None:
        """Return the newest journalled epoch of a partition without an open replica; None if it is unknown.

        If no decision is journalled, this is the first epoch, provided that this node has made a promise for it.
        """
        chain = self._loaded.get(key)
        if chain is not None:
            return chain.active
        fence = self._fences.get((*key, 0))
        return fence.descriptor if fence is not None and fence.HasField("descriptor") else None

    def topics(self) -> set[bytes]:
        """Return the ids of the topics for which this node has a chain or fence."""
        return {key[0] for key in self._loaded} | {key[0] for key in self._fences}

    def chain(self, key: PartitionKey, genesis: pb.EpochDescriptor) -> EpochChain:
        """Return a partition's chain, which its replica extends from then on; a new one begins with `genesis`."""
        chain = self._loaded.get(key)
        if chain is None:
            fence = self._fences.get((*key, genesis.epoch))
            stored = fence.descriptor if fence is not None and fence.HasField("descriptor") else None
            chain = self._loaded[key] = EpochChain(stored or genesis)
        return chain

    def fence(self, key: PartitionKey, epoch: int) -> pb.FenceEntry | None:
        """Return the fence of an epoch as stored when the node started; None if no fence was stored."""
        return self._fences.get((*key, epoch))

    # --- writing ---------------------------------------------------------------------------------------

    def write_chain(self, key: PartitionKey, entries: Sequence[pb.ChainEntry], done: Callable[[], None]) -> None:
        """Append decisions about a partition to the journal; `done` is called when they are durable."""
        if key not in self._journalled:
            self._journalled.add(key)
            genesis = pb.ChainEntry(topic_id=key[0], partition=key[1], genesis=self._loaded[key].genesis)
            entries = [genesis, *entries]
        self._chain_writes.submit(entries, done)

    def write_fences(self, entries: Sequence[pb.FenceEntry], done: Callable[[], None]) -> None:
        """Append fences to the journal; `done` is called when they are durable."""
        self._fence_writes.submit(entries, done)

    async def forget(self, topic_id: bytes, partitions: int) -> None:
        """Durably forget the chains of a deleted topic, then its fences."""
        keys = [(topic_id, index) for index in range(partitions)]
        journalled = [key for key in keys if key in self._journalled]
        dropped = [
            pb.FenceEntry(topic_id=topic_id, partition=index, epoch=epoch, dropped=True)
            for topic, index, epoch in self._fences
            if topic == topic_id
        ]
        for key in keys:
            chain = self._loaded.pop(key, None)
            self._journalled.discard(key)
            if chain is not None:
                # A promise, or the change to an epoch, may have been pending when the replica was stopped.
                dropped += [
                    pb.FenceEntry(topic_id=topic_id, partition=key[1], epoch=epoch, dropped=True)
                    for epoch in (chain.active.epoch, chain.active.epoch - 1)
                    if epoch >= 0
                ]
        for entry in dropped:
            self._fences.pop(fence_key(entry), None)
        if journalled:
            forgotten = [pb.ChainEntry(topic_id=topic_id, partition=index, forgotten=True) for _, index in journalled]
            await _written(self._chain_writes, forgotten)
        if dropped:
            await _written(self._fence_writes, dropped)

    async def close(self) -> None:
        """Refuse writes, and wait for pending ones."""
        await self._chain_writes.close()
        await self._fence_writes.close()


async def _written(writes: GroupCommit[EntryT], entries: Sequence[EntryT]) -> None:
    written = asyncio.Event()
    writes.submit(entries, written.set)
    await written.wait()
