"""The partitions that this node stores: lookup by topic id and number, opening on demand, removal.

This node stores a partition if its first epoch names this node, if the journals have it, or once another node sends a
message about it, because a decision has probably moved the partition to this node.

Its log is opened on demand, see `partition_opener`; until then it is a few numbers, see `closed_partitions`. The first
few of a node are opened at once, so that their first users need not wait. `background_opener` opens partitions without
a request.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.placement.planning import replication_settings
from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID, PartitionKey, TopicRegistry
from tidelog_broker.partition.closed_partitions import ClosedPartitions
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.partition_opener import PartitionOpener, Then
from tidelog_broker.partition.removal import Removal, gone
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.replicas import NewPartition, Replication
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.workers import io_key
from tidelog_broker.storage.partition.partition_dirs import partition_dir_name, stored_partitions
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.errors import ProtocolError
from tidelog_proto.process.garbage_collection import count_long_lived

OPEN_AHEAD: Final = 80
"""Maximum number of partitions that a node opens as soon as it learns of them; later ones are opened on demand."""

_WORKER: Final = 0

FOLLOWED_AT_ONCE: Final = 1_024
"""Maximum number of partitions of a topic that are handled before other tasks of the event loop run: about 4 ms."""
PARTITION_BLOCKS: Final = 440
"""About how many memory blocks an open partition has, for `count_long_lived`: they are not growth to be collected."""
AWAKENED_AT_ONCE: Final = 128
"""Maximum number of partitions of one request that are being opened concurrently: each has a task."""


class Partitions:
    """Finds, opens and removes the partitions that a node stores. All methods are for the event loop's thread."""

    def __init__(
        self,
        tools: PartitionTools,
        *,
        directory: Path,
        replication: Replication,
        tasks: Tasks,
        topics: TopicRegistry,
        open_ahead: int | None = None,
    ) -> None:
        self.tools = tools
        self._directory = directory
        self._replication = replication
        self._chains = replication.chains
        self._node_id = replication.node_id
        self._tasks = tasks
        self._topics = topics
        self._open_ahead = OPEN_AHEAD if open_ahead is None else open_ahead
        self.by_topic: dict[bytes, dict[int, Partition]] = {}
        """The open partitions by topic id and number; other objects only read it."""
        self._open_count = 0
        self.closed = ClosedPartitions()
        """Stored partitions that are not open."""
        self.opening = PartitionOpener(self._open, tasks)
        self._removal = Removal(tools, directory=directory, replication=replication, opening=self.opening)
        self._failed: dict[PartitionKey, ProtocolError] = {}
        """Why closed partitions could not be opened at the last attempt."""
        self._stored_topics: set[bytes] = set()
        """Ids of the topics with partitions on this node, open or closed."""
        self._on_disk: dict[bytes, set[int]] = {}
        """Partitions that had a directory when the node started."""

    # --- lookup ----------------------------------------------------------------------------------------

    def get(self, topic_id: bytes, index: int) -> Partition:
        """Return an open partition. If the partition may be closed, the caller awaits `awake` first.

        Raises:
            ProtocolError: UNKNOWN_TOPIC or UNKNOWN_PARTITION, NOT_OWNER if this node does not store it, EPOCH_CHANGING
                if it is closed, or the error of the last attempt to open it.
        """
        partition = self.by_topic.get(topic_id, {}).get(index)
        if partition is not None:
            return partition
        record = self._topics.with_id(topic_id)
        if index >= record.config.partitions:
            raise ProtocolError(
                pb.UNKNOWN_PARTITION,
                f"topic {record.name!r} has partitions 0 to {record.config.partitions - 1}, got {index}",
            )
        key = (topic_id, index)
        if key in self._failed:
            raise self._failed[key]
        if key in self.closed:
            raise ProtocolError(pb.EPOCH_CHANGING, f"{record.name}/{index} is being opened; retry")
        raise ProtocolError(pb.NOT_OWNER, f"{record.name}/{index} is not stored on this node; request metadata again")

    def find(self, key: PartitionKey) -> Partition | None:
        """Return an open partition; None if it is closed, or this node does not store it."""
        return self.by_topic.get(key[0], {}).get(key[1])

    def of_topic(self, topic_id: bytes) -> list[Partition]:
        """Return the open partitions of a topic, in order; empty if the topic is unknown."""
        stored = self.by_topic.get(topic_id, {})
        return [stored[index] for index in sorted(stored)]

    def all(self) -> list[Partition]:
        """Return every open partition."""
        return [partition for stored in self.by_topic.values() for partition in stored.values()]

    def by_name(self) -> list[tuple[str, list[Partition]]]:
        """Return the names of the topics with open partitions, each with these partitions. Thread-safe.

        Raises:
            RuntimeError: the event loop has changed the partitions meanwhile; the caller retries.
        """
        stored = [list(partitions.values()) for partitions in self.by_topic.values()]
        return [(partitions[0].state.topic.name, partitions) for partitions in stored if partitions]

    @property
    def count(self) -> int:
        """Number of partitions that this node stores, open or not."""
        return self._open_count + len(self.closed)

    async def awake(self, keys: Iterable[PartitionKey]) -> None:
        """Open those of these partitions that this node stores; errors are raised by `get`."""
        if not self.closed:
            return
        wanted = [key for key in dict.fromkeys(keys) if key in self.closed]
        for first in range(0, len(wanted), AWAKENED_AT_ONCE):
            waiting = [self.opening.opened(key) for key in wanted[first : first + AWAKENED_AT_ONCE]]
            await asyncio.gather(*waiting, return_exceptions=True)

    def when_open(self, key: PartitionKey, then: Then) -> None:
        """Open a closed partition, then call `then` with it before other tasks can find it, or with the error.

        The callbacks of one partition are called in the order of these calls; an error may be reported at once.
        """
        self.opening.soon(key, then)

    def known_epoch(self, key: PartitionKey) -> pb.EpochDescriptor | None:
        """Return the newest known epoch of a closed partition; None if it is open or unknown.

        An epoch is known if this node has stored a decision or a promise about it.
        """
        return self._chains.active(key) if key in self.closed else None

    def had(self, key: PartitionKey) -> bool:
        """Return whether this node stored a partition when it started, or has a chain of its epochs now."""
        return key[1] in self._on_disk.get(key[0], ()) or self._chains.knows(*key)

    # --- following topics ------------------------------------------------------------------------------

    async def load(self) -> None:
        """Find the partitions that have a directory, before the first topic is followed.

        Raises:
            OSError: the directory cannot be listed.
        """
        found: defaultdict[bytes, set[int]] = defaultdict(set)
        for name in await self.tools.io.call(_WORKER, stored_partitions, self.tools.disk.fs, self._directory):
            found[name.topic_id].add(name.partition)
        self._on_disk = dict(found)

    async def follow(self, record: pb.TopicRecord) -> None:
        """Apply a topic's revision: more partitions, another configuration, or its deletion.

        Raises:
            ProtocolError: DISK_FULL or STORAGE_FAILED if a log that is opened at once cannot be opened.
        """
        if record.deleted:
            self._drop(record)
            return
        for partition in self.by_topic.get(record.topic_id, {}).values():
            partition.reconfigure(record)
        for index in range(record.config.partitions):
            if index and index % FOLLOWED_AT_ONCE == 0:
                await asyncio.sleep(0)
            key = (record.topic_id, index)
            if self.find(key) is not None or key in self.closed or not self._belongs_here(record, index):
                continue
            self._add_closed(record, index)
            if record.topic_id == META_TOPIC_ID or (
                self._open_count < self._open_ahead and self._is_soon(record, index)
            ):
                await self.opening.opened(key)
        if record.topic_id in self.by_topic or self.closed.count(record.topic_id):
            self._stored_topics.add(record.topic_id)
        self._count_topics()

    def _belongs_here(self, record: pb.TopicRecord, index: int) -> bool:
        if self._chains.knows(record.topic_id, index):
            return True
        first = _first_epoch(record, index)
        return first is None or self._node_id in first.placement

    def _is_soon(self, record: pb.TopicRecord, index: int) -> bool:
        """Return whether a partition is to be opened at once: all but those of `__offsets` with a single replica."""
        first = _first_epoch(record, index)
        return record.topic_id != OFFSETS_TOPIC_ID or first is None or len(first.placement) > 1

    def _add_closed(self, record: pb.TopicRecord, index: int) -> None:
        key = (record.topic_id, index)
        known = self._chains.active(key)
        newest = known or _first_epoch(record, index)
        owner = self._node_id if newest is None else newest.owner
        is_used = known is not None or index in self._on_disk.get(record.topic_id, ())
        self.closed.add(key, owner, is_used=is_used)

    def _genesis(self, record: pb.TopicRecord, index: int) -> pb.EpochDescriptor:
        """Return the first epoch of a partition: as its topic's record defines it, or else of this node alone."""
        genesis = pb.EpochDescriptor(owner=self._node_id, placement=[self._node_id], ack_quorum=1)
        first = _first_epoch(record, index)
        if first is not None:
            genesis.CopyFrom(first)
        genesis.flush = genesis.flush or record.config.flush
        if first is None:
            genesis.engine = replication_settings(record.config).engine
        return genesis

    def _count_topics(self) -> None:
        self.tools.metrics.topics.set(len(self._stored_topics))

    # --- opening ---------------------------------------------------------------------------------------

    def adopt_soon(self, key: PartitionKey) -> None:
        """Open a partition about which another node has sent a message, if its topic is known.

        The message is lost; the other node repeats it.
        """
        record = self._topics.get(key[0])
        if record is not None and not record.deleted and key[1] < record.config.partitions:
            self.opening.soon(key)

    async def _open(self, key: PartitionKey) -> Partition:
        """Open a partition; recovering its log takes time on an I/O worker.

        Raises:
            ProtocolError: UNKNOWN_TOPIC if it was deleted meanwhile, DISK_FULL, STORAGE_FAILED.
        """
        there = self.find(key)
        if there is not None:
            return there
        record = self._topics.with_id(key[0])
        try:
            partition = await self._open_partition(record, key)
        except ProtocolError as error:
            self._failed[key] = error
            if isinstance(error, StorageFailedError):
                self.tools.storage_failed(f"{record.name}/{key[1]}", error)
            raise
        self._failed.pop(key, None)
        return partition

    async def _open_partition(self, record: pb.TopicRecord, key: PartitionKey) -> Partition:
        topic_id, index = key
        work_key = io_key(topic_id, index)
        layouts = self.tools.schemas.of(topic_id) if record.config.typed else None
        store = await self.tools.io.call(work_key, self._open_log, record, index, layouts)
        new = NewPartition(key, f"{record.name}/{index}", self._genesis(record, index))
        driver = await self._replication.open(new, store, work_key)
        current = self._topics.get(topic_id)
        if current is not None and current.deleted:
            driver.stop()
            await self.tools.io.call(work_key, store.close)
            raise gone(current)
        partition = Partition(self.tools, current or record, index, driver, work_key)
        self.by_topic.setdefault(topic_id, {})[index] = partition
        self._stored_topics.add(topic_id)
        self._open_count += 1
        count_long_lived(PARTITION_BLOCKS)
        self.closed.discard(key)
        return partition

    def _open_log(self, record: pb.TopicRecord, index: int, layouts: Layouts | None) -> PartitionLog:
        """Open the log of one partition. Runs on an I/O worker."""
        return PartitionLog.open(
            self.tools.disk,
            self._directory,
            topic=record.name,
            topic_id=record.topic_id,
            partition=index,
            segment_bytes=record.config.segment_bytes,
            layouts=layouts,
        )

    # --- recording a machine crash -----------------------------------------------------------------------

    async def open_unsynced(self) -> None:
        """Open partitions that may have lost unsynced records in a machine crash: each log records that."""
        for key in [key for key in self.closed.used() if not self._is_synced(key)]:
            if key in self.closed:
                await asyncio.gather(self.opening.opened(key, is_wanted=False), return_exceptions=True)

    def noted(self) -> set[str]:
        """Return the names of the directories of all logs that have recorded the machine crash, or lost nothing."""
        names = {one.log.directory.name for one in self.all() if one.driver.view.is_reboot_noted}
        for key in self.closed.used():
            record = self._topics.get(key[0])
            if record is not None and self._is_synced(key):
                names.add(partition_dir_name(record.name, *key))
        return names

    def _is_synced(self, key: PartitionKey) -> bool:
        record = self._topics.get(key[0])
        if record is None:
            return False
        newest = self._chains.active(key) or self._genesis(record, key[1])
        return newest.flush in {pb.ALWAYS, pb.FLUSH_UNSPECIFIED}

    # --- removing --------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Remove the remains of deleted topics that a crash has left."""
        await self._removal.sweep({record.topic_id: record for record in self._topics.deleted()})

    def _drop(self, record: pb.TopicRecord) -> None:
        topic_id = record.topic_id
        partitions, is_stored = self.of_topic(topic_id), bool(self.closed.count(topic_id))
        self.by_topic.pop(topic_id, None)
        self._open_count -= len(partitions)
        count_long_lived(-len(partitions) * PARTITION_BLOCKS)
        self.closed.forget_topic(topic_id)
        for key in [key for key in self._failed if key[0] == topic_id]:
            del self._failed[key]
        self._on_disk.pop(topic_id, None)
        self._stored_topics.discard(topic_id)
        self._count_topics()
        self._replication.drop(topic_id)
        error = gone(record)
        for partition in partitions:
            partition.refuse(error)
            self.tools.rings.forget(partition.ring)
        if partitions or is_stored:
            self._tasks.spawn(self._removal.remove(record, partitions), f"remove the data of {record.name}")


def _first_epoch(record: pb.TopicRecord, index: int) -> pb.EpochDescriptor | None:
    if index < len(record.first_epochs):
        return record.first_epochs[index]
    return record.first_epoch if record.HasField("first_epoch") else None
