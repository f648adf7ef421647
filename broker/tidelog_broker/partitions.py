"""The partitions that this node stores: found by topic id and number, made and removed as topics change."""

from __future__ import annotations

import logging

from tidelog_broker.core.groups import GroupOffsets
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.partition import Partition
from tidelog_broker.services import Services
from tidelog_broker.storage.partition_dirs import partition_dir_name, remove_partition_dir
from tidelog_broker.storage.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)


class Partitions:
    """topic id -> its partitions, in order."""

    def __init__(self, node: Services, topics: TopicRegistry, groups: GroupOffsets) -> None:
        self._node = node
        self._topics = topics
        self._groups = groups
        self._by_topic: dict[bytes, list[Partition]] = {}

    def get(self, topic_id: bytes, index: int) -> Partition:
        """Return a partition.

        Raises:
            ProtocolError: UNKNOWN_TOPIC or UNKNOWN_PARTITION.
        """
        partitions = self._by_topic.get(topic_id)
        if partitions is None:
            record = self._topics.with_id(topic_id)
            raise ProtocolError(pb.UNKNOWN_TOPIC, f"the topic {record.name!r} is not stored here")
        if index >= len(partitions):
            name = partitions[0].topic.name
            raise ProtocolError(
                pb.UNKNOWN_PARTITION, f"{name!r} has partitions 0 to {len(partitions) - 1}, not {index}"
            )
        return partitions[index]

    def of_topic(self, topic_id: bytes) -> list[Partition]:
        """Return the partitions of a topic, none if it is unknown."""
        return self._by_topic.get(topic_id, [])

    def has_topic(self, topic_id: bytes) -> bool:
        """Whether a topic with this id is stored here."""
        return topic_id in self._by_topic

    def all(self) -> list[Partition]:
        """Return every partition."""
        return [partition for partitions in self._by_topic.values() for partition in partitions]

    async def follow(self, record: pb.TopicRecord) -> list[Partition]:
        """Follow a topic's revision: more partitions, another configuration, or its end; return its partitions.

        Opening a log recovers it, which takes its time on an I/O worker.

        Raises:
            ProtocolError: DISK_FULL or STORAGE_FAILED when a log cannot be opened.
        """
        if record.deleted:
            self._drop(record)
            return []
        partitions = self._by_topic.setdefault(record.topic_id, [])
        for partition in partitions:
            partition.reconfigure(record)
        for index in range(len(partitions), record.config.partitions):
            store = await self._node.io.call(index, self._open_log, record, index)
            partitions.append(Partition(self._node, record, index, store))
        self._node.metrics.topics.set(len(self._by_topic))
        return partitions

    def _open_log(self, record: pb.TopicRecord, index: int) -> PartitionLog:
        """Open the log of one partition. Runs on an I/O worker."""
        return PartitionLog.open(
            self._node.disk,
            self._node.dir.partitions,
            topic=record.name,
            topic_id=record.topic_id,
            partition=index,
            segment_bytes=record.config.segment_bytes,
        )

    async def sweep(self, record: pb.TopicRecord) -> None:
        """Remove what a crash left of a deleted topic."""
        disk, parent = self._node.disk, self._node.dir.partitions
        for index in range(record.config.partitions):
            directory = parent / partition_dir_name(record.name, record.topic_id, index)
            if disk.fs.exists(directory):
                await self._node.io.call(index, remove_partition_dir, disk.fs, directory)
        await self._node.epochs.forget(record.topic_id, record.config.partitions)

    def _drop(self, record: pb.TopicRecord) -> None:
        partitions = self._by_topic.pop(record.topic_id, [])
        self._groups.forget_topic(record.topic_id)
        self._node.metrics.topics.set(len(self._by_topic))
        error = ProtocolError(pb.UNKNOWN_TOPIC, f"the topic {record.name!r} was deleted")
        for partition in partitions:
            partition.refuse(error)
            partition.hide()
            self._node.rings.forget(partition.ring)
        if partitions:
            self._node.spawn(self._remove(record, partitions), f"remove the data of {record.name}")

    async def _remove(self, record: pb.TopicRecord, partitions: list[Partition]) -> None:
        """Remove a deleted topic's files; what a crash leaves is removed at the next start."""
        for partition in partitions:
            await partition.remove()
        await self._node.epochs.forget(record.topic_id, record.config.partitions)
        log.info("removed the data of the deleted topic %r", record.name)
