"""What a node keeps for its users: topics, partitions, groups' positions; recovered at start, described on request."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from tidelog_broker.base.bootstrap import roles_named
from tidelog_broker.base.config import REPLICATION_FACTOR_MAX, NodeSettings
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Route, Routes
from tidelog_broker.core.groups import GroupBounds, GroupOffsets
from tidelog_broker.core.placement.registry import NodeRegistry, roles_to
from tidelog_broker.core.replication.outbox import LinkMessage
from tidelog_broker.core.replication.ports import Batch, PartitionKey, Plan
from tidelog_broker.core.topics import (
    META_KEY,
    META_TOPIC_ID,
    OFFSETS_KEY,
    OFFSETS_TOPIC_ID,
    TopicRegistry,
    complete_config,
)
from tidelog_broker.metadata.controller import Controller
from tidelog_broker.metadata.meta_freshness import Hearing
from tidelog_broker.metadata.state_log import MetaLog, OffsetsLog
from tidelog_broker.partition.described import describe_partition
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.partitions import Partitions
from tidelog_broker.partition.services import Services
from tidelog_broker.rebalance import copy_progress
from tidelog_broker.rebalance.copy_progress import NewCopies
from tidelog_broker.rebalance.homing import Homing
from tidelog_broker.rebalance.mover import Mover
from tidelog_broker.rebalance.ownership_advice import Owned, Remedies
from tidelog_broker.rebalance.standing_in import StandingIn
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC

log = logging.getLogger(__name__)

SOFTWARE: Final = "tidelog-node/0.1.0"
INTERNAL_SEGMENT_BYTES: Final = 4 * MIB


class Broker(Services):
    """What the handlers work on. `recover` fills it from the data directory."""

    def __init__(self, settings: NodeSettings, directory: NodeDir, *, fs: FileSystem | None = None) -> None:
        super().__init__(settings, directory, fs=fs)
        self.topics = TopicRegistry()
        self.nodes = NodeRegistry()
        self.groups = GroupOffsets(
            GroupBounds(settings.groups_max, settings.group_positions_max, settings.positions_bytes)
        )
        self.cluster = Cluster(
            self.node_id,
            self.incarnation,
            topics=self.topics,
            nodes=self.nodes,
            info=self.info,
            fill_bytes_per_s=settings.fill_bytes_per_s,
        )
        self.partitions = Partitions(self, self.topics, self.groups)
        self.routes = Routes(self.topics, self._local_route, self.route_news.changed)
        self.meta_log = MetaLog(
            self,
            lambda: self.partitions.get(*META_KEY),
            topics=self.topics,
            nodes=self.nodes,
            follow=self._follow_topic,
            nodes_changed=self.nodes_changed,
        )
        self.hearing = Hearing(
            self, topics=self.topics, meta_log=self.meta_log, cluster=self.cluster, routes=self.routes
        )
        self.offsets_log = OffsetsLog(self, lambda: self.partitions.get(*OFFSETS_KEY), self.groups, self._is_gone)
        self.controller = Controller(
            self.meta_log,
            topics=self.topics,
            nodes=self.nodes,
            cluster=self.cluster,
            routes=self.routes,
            copies_default=settings.replication_factor_default,
            partitions_max=settings.partitions_max,
        )
        self.mover = Mover(
            owned=self._owned,
            roll_over=self._roll_over,
            cluster=self.cluster,
            nodes=self.nodes,
            advisers=[
                Remedies(self.cluster, lag_ms=settings.replica_lag_ms, now_ms=self._now_ms),
                StandingIn(self.cluster, now_ms=self._now_ms),
                Homing(self.cluster, calm_ms=settings.calm_ms, now_ms=self._now_ms),
            ],
            copies=NewCopies(
                ask=partial(copy_progress.ask, self.cluster),
                alive=self.cluster.alive,
                now_ms=self._now_ms,
            ),
            now_ms=self._now_ms,
        )
        self._started_s = time.monotonic()

    # --- recovery --------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Replay `__meta`, open (and so recover) the logs of its topics, replay `__offsets`: of a node on its own.

        Raises:
            ProtocolError: the data is damaged where a node must not go on.
        """
        await self._internal(META_TOPIC, META_TOPIC_ID)
        await self.meta_log.ready()
        await self.meta_log.follow_changes()
        await self._internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
        await self.offsets_log.ready()
        await self._sweep()
        if self.dir.machine_rebooted:
            self._tell_of_lost_tails()

    async def recover_member(self) -> None:
        """Take up what this node kept of `__meta`, and open the logs of the topics in it: of a node of a cluster.

        What has been committed since is applied once `__meta` can be read; nothing here waits for another node.

        Raises:
            ProtocolError: the data is damaged where a node must not go on.
        """
        self.topics.may_lag = True
        snapshot = await self.io.call(0, load_meta_snapshot, self.disk.fs, self.dir.meta_state)
        if snapshot is not None:
            self.topics.apply(snapshot.meta)
            for value in snapshot.records:
                self.meta_log.apply_value(value)
            self.meta_log.applied = snapshot.applied
        meta = self.topics.get(META_TOPIC_ID)
        if meta is not None:
            await self.partitions.follow(meta)
        await self.meta_log.follow_changes()
        await self._sweep()

    def meta_record(self, genesis: pb.EpochDescriptor) -> pb.TopicRecord:
        """Return what `__meta` is on every node of a cluster; it stands in no log."""
        return pb.TopicRecord(
            name=META_TOPIC,
            topic_id=META_TOPIC_ID,
            config=internal_config(META_COPIES),
            first_epoch=genesis,
            first_epochs=[genesis],
        )

    async def _sweep(self) -> None:
        for record in self.topics.deleted():
            self.groups.forget_topic(record.topic_id)
            await self.partitions.sweep(record)

    async def _follow_topic(self, record: pb.TopicRecord) -> None:
        """Let partitions, positions and routes follow a topic's newest record."""
        await self.partitions.follow(record)
        if record.deleted:
            self.groups.forget_topic(record.topic_id)
            self.routes.forget(record.topic_id)
        self.route_news.changed(record.topic_id)

    def _is_gone(self, topic_id: bytes) -> bool:
        record = self.topics.get(topic_id)
        return record is not None and record.deleted

    def nodes_changed(self) -> None:
        """The registry of nodes has changed; a node of a cluster looks after its links."""

    def neighbours_changed(self) -> None:
        """Who is alive, or can be reached, has changed."""
        partitions = self.partitions.all()
        for partition in partitions:
            partition.state.forget_quorum()
        self.replication.neighbours_changed()
        for partition in partitions:
            partition.neighbours_changed()

    def received(self, peer_id: str, message: LinkMessage, batches: Sequence[Batch]) -> None:
        """Take a one-way message of another node; one that comes before this node has its partitions comes again."""
        if self.starting:
            return
        if isinstance(message, pb.ChainDigest):
            message = pb.EpochStatus(
                topic_id=message.topic_id,
                partition=message.partition,
                epoch=message.epoch,
                previous_hash=message.previous_hash,
            )
        if not self.replication.receive(peer_id, message, batches):
            self.partitions.adopt_soon((message.topic_id, message.partition))

    def journal_full(self, error: ProtocolError) -> None:
        """A journal has no space for what would begin an epoch: who waits for that is told."""
        for partition in self.partitions.all():
            partition.no_space_for_fences(error)

    def _tell_of_lost_tails(self) -> None:
        """Say which topics may have lost acknowledged records with the machine's page cache.

        This copy is the only one and therefore the longest: it is served as it is.
        """
        for record in self.topics.live():
            partitions = self.partitions.of_topic(record.topic_id)
            if not all(partition.state.syncs_every_group for partition in partitions):
                log.warning(
                    "DATA_LOSS: the machine went down under this node, and topic %r has flush=%s: records acknowledged "
                    "shortly before may be gone; its partitions end at %s",
                    record.name,
                    pb.Flush.Name(record.config.flush).lower(),
                    ", ".join(str(partition.log.end_offset) for partition in partitions),
                )

    async def _internal(self, name: str, topic_id: bytes) -> Partition:
        """Open one of the broker's own partitions. They are there before any record of `__meta` says so."""
        record = pb.TopicRecord(name=name, topic_id=topic_id, config=internal_config())
        self.topics.apply(record)
        return (await self.partitions.follow(record))[0]

    # --- description -----------------------------------------------------------------------------------

    def _local_route(self, key: PartitionKey) -> Route | None:
        """Return the active epoch of a partition that is stored here."""
        partition = self.partitions.find(key)
        if partition is None:
            return None
        return partition.state.route

    def _owned(self) -> list[Owned]:
        return [
            Owned(
                partition.driver.key,
                partition.replica.active,
                partition.replica.followers,
                partition.pipeline.waits_for_all,
                partition.pipeline.full_since_s,
                partition.state.is_moving,
            )
            for partition in self.partitions.all()
            if partition.state.writer is not None
        ]

    def _now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def _roll_over(self, key: PartitionKey, plan: Plan) -> None:
        partition = self.partitions.find(key)
        if partition is not None:
            partition.driver.roll_over(plan)

    def stored_by(self, node_id: str) -> list[PartitionKey]:
        """Return the partitions whose newest epoch a node stores, as far as is known here."""
        keys = [(record.topic_id, index) for record in self.topics.live() for index in range(record.config.partitions)]
        return [key for key in keys if (route := self.routes.get(key)) is not None and node_id in route.placement]

    def describe(self, record: pb.TopicRecord, only: Iterable[int] | None = None) -> pb.TopicInfo:
        """Return all that this node knows of a topic, or of some partitions; offsets and sizes of what it stores."""
        info = pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, serial=record.serial)
        for index in range(record.config.partitions) if only is None else only:
            key = (record.topic_id, index)
            here = self.partitions.find(key)
            if here is not None:
                info.partitions.append(describe_partition(here.state))
                continue
            route = self.routes.get(key) or Route(0, "", ())
            info.partitions.add(
                partition=index,
                owner=route.owner,
                epoch=route.epoch,
                placement=route.placement,
                state="away" if self.cluster.alive(route.owner) else "no owner",
            )
        return info

    def describe_some(self, record: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
        """Describe a topic's partitions from the first number to before the second."""
        return self.describe(record, range(first, stop))

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
            roles=roles_to(roles_named(self.settings.roles)),
            membership=self.cluster.membership(self.node_id),
            no_quorum=len(self.health.no_quorum),
        )


META_COPIES: Final = 5
"""Copies of `__meta`: with five, two may fail; more would only make every change of a topic slower."""


def internal_config(copies: int = 1) -> pb.TopicConfig:
    """Return the configuration of the broker's own topics."""
    asked = pb.TopicConfig(segment_bytes=INTERNAL_SEGMENT_BYTES, replication_factor=copies)
    return complete_config(asked, copies_max=1 if copies == 1 else REPLICATION_FACTOR_MAX)
