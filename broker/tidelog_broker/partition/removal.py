"""Removal of the data of deleted topics, in the background and by topic id, so that recreating a topic need not wait.

Files are removed first, then the journals' entries: if the process ends between two steps, the next start searches the
disk and the journals for remaining files and entries of deleted topics, by the topics' ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.partition_opener import PartitionOpener
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.replicas import Replication
from tidelog_broker.storage.partition.partition_dirs import (
    forget_partition_dir,
    partition_dir_name,
    stored_partitions,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

_WORKER: Final = 0


class Removal:
    """Removes deleted topics. All methods are for the event loop's thread.

    Args:
        opening: stops opening partitions of a removed topic.
    """

    def __init__(
        self, tools: PartitionTools, *, directory: Path, replication: Replication, opening: PartitionOpener
    ) -> None:
        self._tools = tools
        self._directory = directory
        self._replication = replication
        self._opening = opening

    async def remove(self, record: pb.TopicRecord, partitions: Sequence[Partition]) -> None:
        """Remove a deleted topic's data, including its open `partitions`. `sweep` completes it after a crash.

        Raises:
            StorageFailedError, OSError: the disk failed; the rest is removed at the next start.
        """
        await self._opening.forget_topic(record.topic_id, gone(record))
        for partition in partitions:
            await partition.remove()
        await self.sweep({record.topic_id: record})
        log.info("removed the data of the deleted topic %r", record.name)

    async def sweep(self, deleted: Mapping[bytes, pb.TopicRecord]) -> None:
        """Remove the remains of deleted topics, by id; none of their partitions is open.

        Raises:
            OSError: the disk failed; the rest is removed at the next start.
        """
        for topic_id in deleted:
            self._replication.drop(topic_id)
        disk = self._tools.disk
        for name in await self._tools.io.call(_WORKER, stored_partitions, disk.fs, self._directory):
            if name.topic_id in deleted:
                path = self._directory / partition_dir_name(*name)
                await self._tools.io.call(name.partition, forget_partition_dir, disk, path)
        for topic_id in self._replication.chains.topics().intersection(deleted):
            await self._replication.forget(topic_id, deleted[topic_id].config.partitions)


def gone(record: pb.TopicRecord) -> ProtocolError:
    """Return the error for requests for a deleted topic."""
    return ProtocolError(pb.UNKNOWN_TOPIC, f"the topic {record.name!r} was deleted", topic_id=record.topic_id)
