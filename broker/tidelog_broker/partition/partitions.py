"""The partitions that this node stores: found by topic id and number, made and removed as topics change.

A partition is stored here if its first epoch names this node, if the journals know it, or from the moment on in which
another node has something to say about it: then a decision has probably moved it here.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups import GroupOffsets
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.replicas import NewPartition, Replication
from tidelog_broker.storage.epoch.presence import has_directory_note
from tidelog_broker.storage.partition.partition_dirs import forget_partition_dir, partition_dir_name
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class Partitions:
    """topic id -> number -> what is stored here of it."""

    def __init__(
        self,
        tools: PartitionTools,
        *,
        directory: Path,
        replication: Replication,
        tasks: Tasks,
        topics: TopicRegistry,
        groups: GroupOffsets,
    ) -> None:
        self._tools = tools
        self._directory = directory
        self._replication = replication
        self._node_id = replication.node_id
        self._tasks = tasks
        self._topics = topics
        self._groups = groups
        self._by_topic: dict[bytes, dict[int, Partition]] = {}
        self._opening: dict[bytes, asyncio.Lock] = {}
        self._adopting: set[PartitionKey] = set()

    def get(self, topic_id: bytes, index: int) -> Partition:
        """Return a partition.

        Raises:
            ProtocolError: UNKNOWN_TOPIC or UNKNOWN_PARTITION, NOT_OWNER for one that is not stored here.
        """
        stored = self._by_topic.get(topic_id, {})
        partition = stored.get(index)
        if partition is not None:
            return partition
        record = self._topics.with_id(topic_id)
        if index >= record.config.partitions:
            raise ProtocolError(
                pb.UNKNOWN_PARTITION,
                f"{record.name!r} has partitions 0 to {record.config.partitions - 1}, not {index}",
            )
        raise ProtocolError(pb.NOT_OWNER, f"{record.name}/{index} is not stored here; ask for metadata again")

    def find(self, key: PartitionKey) -> Partition | None:
        """Return a partition if it is stored here."""
        return self._by_topic.get(key[0], {}).get(key[1])

    def of_topic(self, topic_id: bytes) -> list[Partition]:
        """Return what is stored here of a topic, in order; nothing if it is unknown."""
        stored = self._by_topic.get(topic_id, {})
        return [stored[index] for index in sorted(stored)]

    def all(self) -> list[Partition]:
        """Return every partition."""
        return [partition for stored in self._by_topic.values() for partition in stored.values()]

    async def follow(self, record: pb.TopicRecord) -> list[Partition]:
        """Follow a topic's revision: more partitions, another configuration, or its end; return its partitions.

        Opening a log recovers it, which takes its time on an I/O worker.

        Raises:
            ProtocolError: DISK_FULL or STORAGE_FAILED when a log cannot be opened.
        """
        if record.deleted:
            self._drop(record)
            return []
        for partition in self.of_topic(record.topic_id):
            partition.reconfigure(record)
        for index in range(record.config.partitions):
            if self._belongs_here(record, index):
                await self._open(record, index)
        self._tools.metrics.topics.set(len(self._by_topic))
        return self.of_topic(record.topic_id)

    def _belongs_here(self, record: pb.TopicRecord, index: int) -> bool:
        if self._replication.chains.knows(record.topic_id, index):
            return True
        return self._node_id in self._genesis(record, index).placement

    def _genesis(self, record: pb.TopicRecord, index: int) -> pb.EpochDescriptor:
        """Return the first epoch of a partition: as founded, or, where a record says nothing, of this node alone."""
        genesis = pb.EpochDescriptor(owner=self._node_id, placement=[self._node_id], ack_quorum=1)
        if index < len(record.first_epochs):
            genesis.CopyFrom(record.first_epochs[index])
        elif record.HasField("first_epoch"):
            genesis.CopyFrom(record.first_epoch)
        genesis.flush = genesis.flush or record.config.flush
        return genesis

    async def _open(self, record: pb.TopicRecord, index: int) -> None:
        """Open a partition, once."""
        async with self._opening.setdefault(record.topic_id, asyncio.Lock()):
            if self.find((record.topic_id, index)) is not None:
                return
            key = (record.topic_id, index)
            io_key = hash(key) & 0x7FFFFFFF
            store = await self._tools.io.call(io_key, self._open_log, record, index)
            new = NewPartition(key, f"{record.name}/{index}", self._genesis(record, index))
            driver = await self._replication.open(new, store, io_key)
            standing = self._topics.get(record.topic_id)
            if standing is not None and standing.deleted:
                driver.stop()
                await self._tools.io.call(io_key, store.close)
                return
            partition = Partition(self._tools, record, index, driver, io_key)
            self._by_topic.setdefault(record.topic_id, {})[index] = partition

    def adopt_soon(self, key: PartitionKey) -> None:
        """Another node speaks of a partition that is not stored here: open it if its topic is known.

        What it has said is lost; it will say it again.
        """
        record = self._topics.get(key[0])
        if record is None or record.deleted or key[1] >= record.config.partitions or key in self._adopting:
            return
        self._adopting.add(key)
        self._tasks.spawn(self._adopt(record, key), f"open {record.name}/{key[1]}")

    async def _adopt(self, record: pb.TopicRecord, key: PartitionKey) -> None:
        try:
            await self._open(record, key[1])
        except ProtocolError:
            log.exception("%s/%d cannot be opened", record.name, key[1])
        finally:
            self._adopting.discard(key)

    def _open_log(self, record: pb.TopicRecord, index: int) -> PartitionLog:
        """Open the log of one partition. Runs on an I/O worker."""
        return PartitionLog.open(
            self._tools.disk,
            self._directory,
            topic=record.name,
            topic_id=record.topic_id,
            partition=index,
            segment_bytes=record.config.segment_bytes,
        )

    async def sweep(self, record: pb.TopicRecord) -> None:
        """Remove what a crash left of a deleted topic."""
        disk, parent = self._tools.disk, self._directory
        for index in range(record.config.partitions):
            directory = parent / partition_dir_name(record.name, record.topic_id, index)
            if disk.fs.exists(directory) or has_directory_note(disk.fs, directory):
                await self._tools.io.call(index, forget_partition_dir, disk.fs, directory)
        await self._replication.forget(record.topic_id, record.config.partitions)

    def _drop(self, record: pb.TopicRecord) -> None:
        partitions = self.of_topic(record.topic_id)
        self._by_topic.pop(record.topic_id, None)
        self._opening.pop(record.topic_id, None)
        self._groups.forget_topic(record.topic_id)
        self._tools.metrics.topics.set(len(self._by_topic))
        self._replication.drop(record.topic_id)
        error = ProtocolError(pb.UNKNOWN_TOPIC, f"the topic {record.name!r} was deleted")
        for partition in partitions:
            partition.refuse(error)
            partition.hide()
            self._tools.rings.forget(partition.ring)
        if partitions:
            self._tasks.spawn(self._remove(record, partitions), f"remove the data of {record.name}")

    async def _remove(self, record: pb.TopicRecord, partitions: list[Partition]) -> None:
        """Remove a deleted topic's files; what a crash leaves is removed at the next start."""
        for partition in partitions:
            await partition.remove()
        await self._replication.forget(record.topic_id, record.config.partitions)
        log.info("removed the data of the deleted topic %r", record.name)
