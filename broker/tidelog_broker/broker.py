"""What a node keeps for its users: topics, partitions, groups' positions; recovered at start, described on request."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Final

from tidelog_broker.cluster import Cluster
from tidelog_broker.config import NodeSettings
from tidelog_broker.core.groups import GroupOffsets
from tidelog_broker.core.registry import NodeRegistry
from tidelog_broker.core.topics import TopicRegistry, complete_config
from tidelog_broker.partition import Partition
from tidelog_broker.partitions import Partitions
from tidelog_broker.services import Services
from tidelog_broker.state_log import MetaLog, OffsetsLog
from tidelog_broker.storage.filesystem import FileSystem
from tidelog_broker.storage.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import MIB
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC

log = logging.getLogger(__name__)

SOFTWARE: Final = "tidelog-node/0.1.0"
META_TOPIC_ID: Final = bytes(15) + b"\x01"
OFFSETS_TOPIC_ID: Final = bytes(15) + b"\x02"
INTERNAL_SEGMENT_BYTES: Final = 4 * MIB


class Broker(Services):
    """What the handlers work on. `recover` fills it from the data directory."""

    def __init__(self, settings: NodeSettings, directory: NodeDir, *, fs: FileSystem | None = None) -> None:
        super().__init__(settings, directory, fs=fs)
        self.topics = TopicRegistry()
        self.nodes = NodeRegistry()
        self.groups = GroupOffsets()
        self.partitions = Partitions(self, self.topics, self.groups)
        self.changing_topics = asyncio.Lock()
        self._started_s = time.monotonic()
        self.cluster = Cluster(self.node_id, self.incarnation, topics=self.topics, nodes=self.nodes, info=self.info)

    async def recover(self) -> None:
        """Replay `__meta`, open (and so recover) the logs of its topics, replay `__offsets`.

        Raises:
            ProtocolError: the data is damaged where a node must not go on.
        """
        meta = await self._internal(META_TOPIC, META_TOPIC_ID)
        self.meta_log = MetaLog(self, meta, self.topics, self.nodes, self.partitions.follow)
        await self.meta_log.replay()
        for record in self.topics.live():
            await self.partitions.follow(record)
        offsets = await self._internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
        self.offsets_log = OffsetsLog(self, offsets, self.groups, self.partitions.has_topic)
        await self.offsets_log.replay()
        for record in self.topics.deleted():
            self.groups.forget_topic(record.topic_id)
            await self.partitions.sweep(record)
        if self.dir.machine_rebooted:
            self._tell_of_lost_tails()

    def _tell_of_lost_tails(self) -> None:
        """Say which topics may have lost acknowledged records with the machine's page cache.

        This copy is the only one and therefore the longest: it is served as it is.
        """
        for record in self.topics.live():
            partitions = self.partitions.of_topic(record.topic_id)
            if not all(partition.syncs_every_group for partition in partitions):
                log.warning(
                    "DATA_LOSS: the machine went down under this node, and topic %r has flush=%s: records acknowledged "
                    "shortly before may be gone; its partitions end at %s",
                    record.name,
                    pb.Flush.Name(record.config.flush).lower(),
                    ", ".join(str(partition.log.end_offset) for partition in partitions),
                )

    async def _internal(self, name: str, topic_id: bytes) -> Partition:
        """Open one of the broker's own partitions. They are there before any record of `__meta` says so."""
        config = complete_config(pb.TopicConfig(segment_bytes=INTERNAL_SEGMENT_BYTES))
        record = pb.TopicRecord(name=name, topic_id=topic_id, config=config)
        self.topics.apply(record)
        return (await self.partitions.follow(record))[0]

    def info(self) -> pb.NodeInfo:
        """Return how clients reach this node."""
        return pb.NodeInfo(
            node_id=self.node_id,
            host=self.settings.advertised_host,
            port=self.port,
            zone=self.settings.zone,
            incarnation=self.incarnation,
            alive=True,
        )

    def status(self) -> pb.NodeStatus:
        """Return what CLUSTER_STATUS tells of this node."""
        disk = os.statvfs(self.dir.path)
        return pb.NodeStatus(
            node=self.info(),
            software=SOFTWARE,
            uptime_ms=int((time.monotonic() - self._started_s) * 1000),
            connections=self.open_connections,
            in_flight_bytes=self.budget.in_flight_bytes,
            data_bytes=sum(partition.log.size_bytes for partition in self.partitions.all()),
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            state=self.health.state,
        )
