"""State and services of a node for its clients: topics, partitions, group positions, and the components that own them.

Components receive their dependencies by name and are made bottom-up, after the journals are open. A component reaches
one that is made later through a callback of this class. Handlers receive the whole object.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from functools import partial

from tidelog_broker.base.bootstrap import roles_named
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.lifecycle import Lifecycle
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.base.tasks import Tasks
from tidelog_broker.base.threads import Threads
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.incarnation_registry import IncarnationRegistry
from tidelog_broker.cluster.route_watch import RouteWatch
from tidelog_broker.cluster.routes import Route, Routes, route_of
from tidelog_broker.core.groups.positions import GroupBounds
from tidelog_broker.core.hot_ring import RingBudget
from tidelog_broker.core.placement.registry import NodeRegistry, roles_to
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.core.topics import (
    META_KEY,
    META_TOPIC_ID,
    OFFSETS_KEY,
    OFFSETS_TOPIC_ID,
    PartitionKey,
    TopicRegistry,
)
from tidelog_broker.groups.shards import GroupShards
from tidelog_broker.metadata.audit_log import AuditLog
from tidelog_broker.metadata.controller import Controller
from tidelog_broker.metadata.features import FEATURES, FeatureGate
from tidelog_broker.metadata.internal_topics import internal_config
from tidelog_broker.metadata.meta_freshness import MetaFreshness
from tidelog_broker.metadata.node_security import NodeSecurity
from tidelog_broker.metadata.schema_changes import SchemaChanges
from tidelog_broker.metadata.state_log import MetaLog
from tidelog_broker.metadata.topic_descriptions import TopicDescriptions
from tidelog_broker.metadata.topic_engines import TopicEngines
from tidelog_broker.metadata.topic_quotas import TopicQuotas
from tidelog_broker.partition.background_opener import BackgroundOpener
from tidelog_broker.partition.compaction_progress import ProgressClock
from tidelog_broker.partition.full_disk_refusals import FullDiskRefusals
from tidelog_broker.partition.partitions import Partitions
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.rebalance import copy_progress
from tidelog_broker.rebalance.changed_settings import ChangedSettings
from tidelog_broker.rebalance.copy_progress import NewCopies
from tidelog_broker.rebalance.mover import Mover
from tidelog_broker.rebalance.owned_partitions import OwnedPartitions
from tidelog_broker.rebalance.ownership_advice import OwnershipAdvice
from tidelog_broker.rebalance.preferred_owner import PreferredOwner
from tidelog_broker.rebalance.temporary_owner import TemporaryOwner
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.engine_tallies import EngineTallies
from tidelog_broker.replication.grouped_syncs import GroupedSyncs
from tidelog_broker.replication.journals import Chains
from tidelog_broker.replication.log_writer import InlineWrites
from tidelog_broker.replication.replicas import Replication, clock_ms
from tidelog_broker.replication.takeover_log import TakeoverLog
from tidelog_broker.storage.engine.store import SHARED
from tidelog_broker.storage.engines.installed import InstalledEngines
from tidelog_broker.storage.engines.stores import engine_named, engine_names
from tidelog_broker.storage.io.errors import NodeDirError
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.io.mapping import can_copy, can_populate
from tidelog_broker.storage.node.fences import FENCES
from tidelog_broker.storage.node.incarnation_journal import INCARNATIONS
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.partition.partition_dirs import sweep_trash
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.hash_memory import HashMemory
from tidelog_broker.wire.bounds import ConnectionBounds
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.peers import Peers
from tidelog_broker.wire.quota_accounts import Accounts
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC
from tidelog_proto.process.busy_poll import IdlePoll
from tidelog_proto.version import NODE_SOFTWARE

log = logging.getLogger(__name__)


ClusterMaker = Callable[..., Cluster]
"""Makes the node's view of the cluster; takes the arguments of `Cluster`."""


class Broker:
    """The composition of a node's components. Made by `open_broker`; for the event loop's thread only.

    Args:
        lifecycle: receives faults after which the node must not continue.
        nodes_changed: called after a change of the node registry.
        features: the features that the node supports in addition to the base set, see `metadata.features`.
    """

    def __init__(
        self,
        settings: NodeSettings,
        directory: NodeDir,
        *,
        lifecycle: Lifecycle,
        nodes_changed: Callable[[], None],
        cluster: ClusterMaker,
        fs: FileSystem,
        features: Collection[str],
    ) -> None:
        self._resources = contextlib.ExitStack()
        self._started_s = time.monotonic()
        self.settings = settings
        self.dir = directory
        self.node_id, self.cluster_id, self.incarnation = directory.node_id, directory.cluster_id, directory.incarnation
        self.lifecycle = lifecycle
        self.metrics = NodeMetrics()
        self.audit = AuditLog()
        self.tasks = Tasks()
        self.loop = self.tasks.loop
        self.now_ms = clock_ms(self.loop)
        self.clock = SteadyClock(settings.clock_settle_s)
        self.bounds = ConnectionBounds(settings)
        self.rings = RingBudget(settings.rings_bytes)
        self.full_disk = FullDiskRefusals()
        self.contents = Budget(settings.deduplication_bytes)
        self.inline_writes = InlineWrites()
        self.taken_over = TakeoverLog()
        self.route_news = RouteWatch()
        self.peers: Peers | None = None
        """Connections of other nodes; None on a single node without a cluster."""
        self.port = 0
        """The port for clients, set once the node listens."""
        self.topics, self.nodes, self.schemas = TopicRegistry(), NodeRegistry(), SchemaRegistry(threading.Lock())
        self.cluster = cluster(
            self.node_id,
            self.incarnation,
            topics=self.topics,
            nodes=self.nodes,
            info=self.info,
            has_engine=self._has_engine,
            backfill_bytes_per_s=settings.fill_bytes_per_s,
        )
        with contextlib.ExitStack() as opening:
            opening.callback(self._resources.close)
            self.tls = NodeTls.of(settings)
            self.threads = Threads(settings.io_workers)
            self._resources.callback(self.threads.close)
            self.disk, self.engines = self._open_disk(fs)
            self.replication = self._open_replication()
            self.incarnations = self._open_incarnations()
            self.security = NodeSecurity(settings, self.threads.secrets, self.metrics)
            self.accounts = self._make_accounts()
            opening.pop_all()
        self.features = self._make_features(features)
        self._unsupported = ""
        """Why the start must end: a record of `__meta` needs a feature that this build lacks; otherwise empty."""
        self.idle_poll = self._make_idle_poll()
        self.changed_settings = self._make_changed_settings()
        self.partitions, self.owned = self._make_partitions()
        self.waking = self._make_waking()
        self.routes = Routes(self.topics, self._local_route, self.route_news.changed)
        self.description = self._make_description()
        self.meta_log = self._make_meta_log(nodes_changed)
        self.meta_freshness = MetaFreshness(
            self.node_id,
            tasks=self.tasks,
            topics=self.topics,
            meta_log=self.meta_log,
            cluster=self.cluster,
            routes=self.routes,
        )
        self.groups = self._make_groups()
        self.controller, self.security_changes = self._make_controller(), self.security.changes_in(self.meta_log)
        self.mover = self._make_mover()

    def _make_description(self) -> TopicDescriptions:
        unapplied = self.changed_settings.unapplied
        return TopicDescriptions(
            self.topics, self.schemas, self.partitions, self.routes, self.cluster, unapplied=unapplied
        )

    def _open_disk(self, fs: FileSystem) -> tuple[Disk, InstalledEngines]:
        """Return the file access that all logs share, according to the settings, and the engines on it."""
        disk = self.threads.disk(fs, HashMemory(self.settings.indexes_bytes))
        # With TLS this process reads the data in order to encrypt it, and an I/O error of a mapping would kill it.
        disk.maps_reads = self.settings.segment_read == "mapped" and can_populate() and not self.tls.is_on
        disk.commit_log_dir = self.dir.commit_log
        disk.memory_bytes = self.settings.memory_engine_bytes
        disk.engines_dir = self.dir.engines
        disk.rocksdb_preset = self.settings.rocksdb_preset
        disk.maps_writes = self.settings.segment_write == "mapped" and can_copy()
        if self.settings.segment_write == "mapped" and not disk.maps_writes:
            log.warning("segment_write=mapped is not supported by this system; segments are written without a mapping")
        return disk, InstalledEngines(partial(engine_named, disk))

    def _has_engine(self, name: str) -> bool:
        return self.engines.has(name)

    def _open_replication(self) -> Replication:
        fs, directory = self.disk.fs, self.dir
        meta = self._resources.enter_context(contextlib.closing(TypedJournal.open(fs, directory.meta_journal, CHAINS)))
        fences = self._resources.enter_context(contextlib.closing(TypedJournal.open(fs, directory.fences, FENCES)))
        chains = Chains(
            meta,
            fences,
            offload=self.threads.journals,
            failed=lambda error: self.lifecycle.storage_failed("the journals", error),
            full=self._journal_full,
        )
        engines = EngineTallies()
        tools = Tools(
            io=self.threads.io,
            readers=self.threads.readers,
            ahead=self.threads.ahead,
            syncs=GroupedSyncs(self.threads.shared_syncs, engines.of(SHARED)),
            fs=fs,
            chains=chains,
            neighbours=self.cluster,
            inline_writes=self.inline_writes,
            peers_budget=self.bounds.peers_budget,
            now_ms=self.now_ms,
            wall_us=self.clock.now_us,
            group_bytes=self.settings.group_bytes,
            engines=engines,
        )
        self._writes = tools.writes
        self.engine_tallies = engines
        return Replication(self.node_id, self.incarnation, tools=tools, rebooted=directory.machine_rebooted)

    def _open_incarnations(self) -> IncarnationRegistry:
        """Return the incarnations of this node and the known ones of other nodes."""
        journal = TypedJournal.open(self.disk.fs, self.dir.incarnations, INCARNATIONS)
        self._resources.enter_context(contextlib.closing(journal))
        return IncarnationRegistry(
            (self.node_id, self.dir.directory_id),
            self.incarnation,
            journal,
            offload=self.threads.journals,
            writes=lambda: self._writes.value,
            failed=lambda error: self.lifecycle.storage_failed("the journal of incarnations", error),
            refused=self._refuse_directory,
        )

    def _refuse_directory(self, why: str, is_final: bool) -> None:
        """Stop this node, because other nodes have proven that its data directory is an older copy.

        Later starts are refused too: with `is_final` by a mark in the directory, if it was ever admitted; otherwise by
        the journal of incarnations, until the incarnation that proves the directory old is withdrawn.
        """
        self.cluster.withdraw()
        if is_final and self.dir.admitted:
            try:
                self.dir.mark_refused(why)
            except NodeDirError as error:
                log.error(  # noqa: TRY400
                    "cannot store on disk that the cluster refused this data directory, so the next start "
                    "asks the cluster again: %s",
                    error,
                )
        self.lifecycle.give_up(why)

    def _make_idle_poll(self) -> IdlePoll:
        return IdlePoll(self.loop, self.settings.idle_poll_us, may_poll=self.threads.may_poll)

    def _make_accounts(self) -> Accounts:
        return Accounts(
            self.security.registry.quotas,
            time.monotonic,
            in_flight_bytes=self.settings.caller_in_flight_bytes,
            count=self.metrics.throttled,
        )

    def _partition_tools(self) -> PartitionTools:
        return PartitionTools(
            settings=self.settings,
            loop=self.loop,
            disk=self.disk,
            io=self.threads.io,
            readers=self.threads.readers,
            notes=self.threads.notes,
            compactor=self.threads.compactor,
            passes=ProgressClock(self.loop.time),
            clock=self.clock,
            contents=self.contents,
            producers=ProducerBudget(),
            rings=self.rings,
            full_disk=self.full_disk,
            metrics=self.metrics,
            neighbours=self.cluster,
            taken_over=self.taken_over,
            schemas=self.schemas,
            route_news=self.route_news,
            may_differ=self.changed_settings.look,
            storage_failed=self.lifecycle.storage_failed,
        )

    def _make_partitions(self) -> tuple[Partitions, OwnedPartitions]:
        partitions = Partitions(
            self._partition_tools(),
            directory=self.dir.partitions,
            replication=self.replication,
            tasks=self.tasks,
            topics=self.topics,
        )
        return partitions, OwnedPartitions(partitions, self.cluster)

    def _make_waking(self) -> BackgroundOpener:
        self.metrics.partitions.watch(self.partitions.by_name, self.settings.metrics_partitions_max)
        return BackgroundOpener(
            self.partitions,
            neighbours=self.cluster,
            nodes=self.nodes,
            node_id=self.node_id,
            first_epoch=self.topics.first_epoch,
            loop=self.loop,
        )

    def _make_features(self, own: Collection[str]) -> FeatureGate:
        return FeatureGate(own, topics=self.topics, nodes=self.nodes, security=self.security.registry)

    def _make_meta_log(self, nodes_changed: Callable[[], None]) -> MetaLog:
        return MetaLog(
            self.tasks,
            lambda: self.partitions.get(*META_KEY),
            topics=self.topics,
            schemas=self.schemas,
            nodes=self.nodes,
            security=self.security.registry,
            features=self.features,
            follow=self._follow_topic,
            unsupported=self._end_unsupported,
            nodes_changed=nodes_changed,
            security_changed=lambda: self.security.changed(),  # noqa: PLW0108 - it is set later
        )

    def _make_groups(self) -> GroupShards:
        settings = self.settings
        return GroupShards(
            tasks=self.tasks,
            partitions=self.partitions,
            topics=self.topics,
            permissions=self.security.registry.permissions,
            bounds=GroupBounds(settings.groups_max, settings.group_positions_max, settings.positions_bytes),
            clock=self.clock,
            metrics=self.metrics,
            node_id=self.node_id,
            lifecycle=self.lifecycle,
            turns=self.bounds.turns,
        )

    def _make_controller(self) -> Controller:
        return Controller(
            self.meta_log,
            topics=self.topics,
            nodes=self.nodes,
            cluster=self.cluster,
            routes=self.routes,
            copies_default=self.settings.replication_factor_default,
            partitions_max=self.settings.partitions_max,
            quotas=TopicQuotas(self.security.registry.quotas, self.topics),
            features=self.features,
            schemas=SchemaChanges(self.schemas, now_us=self.clock.now_us),
            engines=TopicEngines(
                engine_names,
                lambda name: engine_named(self.disk, name).capabilities,
                self.settings.engine_default,
                shares_files=self.settings.file_model_default == "shared",
            ),
        )

    def _make_changed_settings(self) -> ChangedSettings:
        return ChangedSettings(
            owned=lambda key: self.owned.find(key),  # noqa: PLW0108 - it is set later
            roll_over=lambda key, plan: self.owned.roll_over(key, plan),  # noqa: PLW0108
            cluster=self.cluster,
            topics=self.topics,
            now_ms=self.now_ms,
        )

    def _make_mover(self) -> Mover:
        cluster, now_ms = self.cluster, self.now_ms
        return Mover(
            begin_single_copies=self.owned.begin_single_copies,
            owned=self.owned.all,
            roll_over=self.owned.roll_over,
            cluster=cluster,
            nodes=self.nodes,
            advisers=[
                OwnershipAdvice(cluster, lag_ms=self.settings.replica_lag_ms, now_ms=now_ms),
                TemporaryOwner(cluster, now_ms=now_ms),
                PreferredOwner(cluster, calm_ms=self.settings.calm_ms, now_ms=now_ms),
            ],
            copies=NewCopies(ask=partial(copy_progress.ask, cluster), alive=cluster.alive, now_ms=now_ms),
            now_ms=now_ms,
        )

    def close(self) -> None:
        """Close the journals and end the threads."""
        self._resources.close()

    # --- recovery --------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Replay `__meta`, open its topics and ensure that `__offsets` exists; for a node without a cluster.

        Raises:
            ProtocolError: the data is damaged in a way that the node must not start with.
        """
        await self.partitions.load()
        await self._internal(META_TOPIC, META_TOPIC_ID)
        await self.meta_log.ready()
        self._refuse_unsupported()
        await self.meta_log.follow_changes()
        await self.found_offsets()
        self._sweep()

    async def recover_member(self) -> None:
        """Load this node's snapshot of `__meta` and open the topics in it; for a member of a cluster.

        Later commits are applied once `__meta` can be read; nothing here waits for another node.

        Raises:
            ProtocolError: the data is damaged in a way that the node must not start with.
        """
        self.topics.may_lag = True
        await self.partitions.load()
        snapshot = await self.threads.io.call(0, load_meta_snapshot, self.disk.fs, self.dir.meta_state)
        if snapshot is not None:
            self.topics.apply(snapshot.meta)
            for value in snapshot.records:
                self.meta_log.apply_value(value)
            self.meta_log.applied = snapshot.applied
        self._refuse_unsupported()
        meta = self.topics.get(META_TOPIC_ID)
        if meta is not None:
            await self.partitions.follow(meta)
        await self.meta_log.follow_changes()
        self._sweep()

    def _end_unsupported(self, why: str) -> None:
        self._unsupported = why
        self.lifecycle.give_up(why)

    def _refuse_unsupported(self) -> None:
        """Raise UNSUPPORTED_VERSION during a start if this build cannot apply a record of `__meta`."""
        if self._unsupported:
            raise ProtocolError(pb.UNSUPPORTED_VERSION, self._unsupported)

    async def found_offsets(self) -> None:
        """Ensure that `__offsets` exists; in a cluster it gets `replication_factor_default` copies.

        An existing `__offsets` without a recorded partition count comes from a release in which it had one partition.

        Raises:
            ProtocolError: see `Controller.found_offsets`.
        """
        settings, existing = self.settings, self.topics.get(OFFSETS_TOPIC_ID)
        if existing is None and self.cluster.is_alone and self.partitions.had(OFFSETS_KEY):
            await self._internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID)
            return
        config = internal_config(1 if self.cluster.is_alone else settings.replication_factor_default)
        is_new = not self.partitions.had(OFFSETS_KEY)
        config.partitions = settings.offsets_partitions if is_new else 1
        await self.controller.found_offsets(config, is_new=is_new)

    async def _internal(self, name: str, topic_id: bytes) -> None:
        """Open an internal partition, which exists before any record of `__meta` describes it."""
        record = pb.TopicRecord(name=name, topic_id=topic_id, config=internal_config())
        self.topics.apply(record)
        await self.partitions.follow(record)

    def _sweep(self) -> None:
        """Stop the replicas of deleted topics and forget their positions now; remove their files in the background."""
        for record in self.topics.deleted():
            self.groups.forget_topic(record.topic_id)
            self.replication.drop(record.topic_id)
        self.tasks.spawn(self.partitions.sweep(), "removing files of deleted topics")

    def log_lost_tails(self) -> None:
        """Log topics that may have lost acknowledged records with the machine's page cache.

        This node has the only copies, so they are served without the lost records.
        """
        for record in self.topics.live():
            partitions = self.partitions.of_topic(record.topic_id)  # partitions that may have lost records are open
            if not all(partition.state.syncs_every_group for partition in partitions):
                log.warning(
                    "DATA_LOSS: the machine restarted without a clean stop, and topic %r has flush=%s: records "
                    "acknowledged shortly before may be lost; its partitions end at the offsets %s",
                    record.name,
                    pb.Flush.Name(record.config.flush).lower(),
                    ", ".join(str(partition.log.end_offset) for partition in partitions),
                )

    # --- changes ---------------------------------------------------------------------------------------

    def liveness_changed(self) -> None:
        """Handle a change of the nodes that are alive or reachable."""
        partitions = self.partitions.all()
        for partition in partitions:
            partition.state.forget_quorum()
        self.replication.liveness_changed()
        for partition in partitions:
            partition.liveness_changed()
        self.waking.liveness_changed()

    def _journal_full(self, error: ProtocolError) -> None:
        """Fail the operations that wait for a new epoch, because a journal has no disk space; clients retry them."""
        for partition in self.partitions.all():
            partition.no_space_for_fences(error)

    async def _follow_topic(self, record: pb.TopicRecord) -> None:
        """Apply a topic's newest record to partitions, positions and routes, if this build can read its version."""
        if self.features.fault_of_record(record):
            return  # Not applied: this build cannot read the record, so the node is about to stop.
        await self.partitions.follow(record)
        if record.deleted:
            self.groups.forget_topic(record.topic_id)
            self.routes.forget(record.topic_id)
        self.waking.liveness_changed()
        self.route_news.changed(record.topic_id)

    # --- callbacks between components ------------------------------------------------------------------

    def _local_route(self, key: PartitionKey) -> Route | None:
        """Return the route of a partition stored on this node, from its newest known epoch, if any."""
        partition = self.partitions.find(key)
        if partition is not None:
            return partition.state.route
        newest = self.partitions.known_epoch(key)
        return route_of(newest) if newest is not None else None

    # --- this node's description -----------------------------------------------------------------------

    @property
    def advertised_port(self) -> int:
        """The native port that metadata reports to clients and other nodes."""
        return self.settings.advertise_port or self.port

    def info(self) -> pb.NodeInfo:
        """Return this node's entry in metadata: its id, address for clients, zone and incarnation."""
        return pb.NodeInfo(
            node_id=self.node_id,
            host=self.settings.advertised_host,
            port=self.advertised_port,
            zone=self.settings.zone,
            incarnation=self.incarnation,
            alive=True,
        )

    def status(self) -> pb.NodeStatus:
        """Return this node's part of CLUSTER_STATUS."""
        disk, health = os.statvfs(self.dir.path), self.lifecycle.health
        return pb.NodeStatus(
            node=self.info(),
            software=NODE_SOFTWARE,
            level=self.features.supported_level,
            uptime_ms=int((time.monotonic() - self._started_s) * 1000),
            connections=self.bounds.open_connections,
            in_flight_bytes=self.bounds.budget.used_bytes,
            data_bytes=sum(partition.log.size_bytes for partition in self.partitions.all()),
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            state=health.reported_state,
            roles=roles_to(roles_named(self.settings.roles)),
            membership=self.cluster.membership(self.node_id),
            no_quorum=len(health.no_quorum),
            certificate_ends_us=int(self.tls.ends.get("certificate", 0) * 1e6),
            ca_ends_us=int(self.tls.ends.get("ca", 0) * 1e6),
        )


async def open_broker(
    settings: NodeSettings,
    directory: NodeDir,
    *,
    lifecycle: Lifecycle,
    nodes_changed: Callable[[], None] = lambda: None,
    cluster: ClusterMaker = Cluster,
    fs: FileSystem | None = None,
    features: Collection[str] = FEATURES,
) -> Broker:
    """Start the threads, open the journals, make the components and remove the files of deleted partitions.

    `Broker` describes the arguments.

    Raises:
        ProtocolError: a journal is damaged or cannot be read.
        SettingsError: a file that the settings name cannot be used.
    """
    broker = Broker(
        settings,
        directory,
        lifecycle=lifecycle,
        nodes_changed=nodes_changed,
        cluster=cluster,
        fs=fs or RealFileSystem(),
        features=features,
    )
    try:
        await broker.threads.io.call(0, sweep_trash, broker.disk.fs, directory.partitions)
    except BaseException:
        broker.close()
        raise
    return broker
