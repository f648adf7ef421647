"""Start and stop of a node.

Start: threads and journals, then every port, so that a port in use is detected before anything is written to a log or
a chain, since a supervisor restarts the node again and again. Admission to a cluster also needs the native port,
because it asks nodes that may be starting themselves. Until the local data is recovered (`broker`), client requests are
answered with a retriable error. Then gossip starts, in a cluster, and replicas take over partitions without an owner.
Stop: transfer owned partitions, take no new requests, finish those in progress, leave the cluster, save the state that
the next start would otherwise rebuild by scanning the logs, close.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Collection
from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.lifecycle import Lifecycle
from tidelog_broker.base.management_answers import Answers
from tidelog_broker.base.metrics_guard import MetricsGuard
from tidelog_broker.broker import Broker, ClusterMaker, open_broker
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.groups.group_expiry import GroupExpiry
from tidelog_broker.groups.group_loading import GroupLoading
from tidelog_broker.metadata.features import FEATURES
from tidelog_broker.node import reboot_mark
from tidelog_broker.node.cluster_membership import ClusterMembership
from tidelog_broker.node.directory_admission import Founding
from tidelog_broker.node.disk_log import DiskLog
from tidelog_broker.node.graceful_stop import hand_over
from tidelog_broker.node.meta_follower import MetaFollower
from tidelog_broker.node.metrics_sources import watch_figures
from tidelog_broker.node.route_learning import RouteLearning
from tidelog_broker.partition.backfill_monitor import BackfillMonitor
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.scrubber import Scrubber
from tidelog_broker.replication.anti_entropy import AntiEntropy
from tidelog_broker.replication.push_windows import divide_window_memory
from tidelog_broker.server.audit_topic import AuditTopic
from tidelog_broker.server.server import Server
from tidelog_broker.storage.engines.stores import unwritten
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.wire.management_port import Management
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.host_header import HostNames
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

RETENTION_LOOKS_MAX: Final = 500
"""Maximum number of partitions that retention checks per interval, since many thousands would occupy a core."""

DISK_FREE_BYTES_MIN: Final = MIB
"""Free disk space below which a node is not ready, since hardly any append would fit."""
DISK_FULL_S: Final = 30.0
"""How long a node is not ready after it has refused a publish for lack of disk space."""

RULES_AGAIN_S: Final = 0.1
_HEARTBEAT_S: Final = 0.5


class Node:
    """One node. Construct on its event loop, `await start()`, `await run_until_stopped()`; nothing runs before `start`.

    Args:
        founding: how the node joins its cluster; None for a node without a cluster.
        features: the features that the node supports, see `metadata.features`.
    """

    broker: Broker
    """The node's components, set by `start`, as is `server`."""
    server: Server

    def __init__(
        self,
        settings: NodeSettings,
        directory: NodeDir,
        *,
        founding: Founding | None = None,
        cluster: ClusterMaker = Cluster,
        fs: FileSystem | None = None,
        features: Collection[str] = FEATURES,
    ) -> None:
        self.settings = settings
        self.dir = directory
        self.node_id, self.incarnation = directory.node_id, directory.incarnation
        self.lifecycle = Lifecycle()
        self.management_port = 0
        self.membership: ClusterMembership | None = None
        self._founding = founding
        self._cluster_maker = cluster
        self._fs = fs
        self._features = features
        self._management: Management | None = None
        self._is_open = False

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.broker.port

    async def start(self) -> None:
        """Open the ports, recover the local data and, in a cluster, join it; then serve.

        Raises:
            ProtocolError: the data is damaged in a way that the node must not start with.
            IdentityError: the cluster does not admit this node, or its id belongs to another one.
            OldCopyError: the data directory is an older copy of this node's directory.
            OSError: a port is in use, or a file cannot be used.
        """
        broker = self.broker = await open_broker(
            self.settings,
            self.dir,
            lifecycle=self.lifecycle,
            nodes_changed=self._nodes_changed,
            cluster=self._cluster_maker,
            fs=self._fs,
            features=self._features,
        )
        self.server = Server(broker)
        if self.settings.otel:
            from tidelog_broker.base.request_spans import RequestSpans  # noqa: PLC0415 # it needs the extra `otel`

            self.server.spans = RequestSpans(self.node_id, broker.metrics.registry.collect)
        self._is_open = True
        watch_figures(broker, self.lifecycle.health)
        self._start_management()
        self.lifecycle.starting = True
        if self.settings.audit_topic:
            audit_topic = AuditTopic(broker)
            broker.audit.also = audit_topic.put
            broker.tasks.spawn(audit_topic.run(), "writing __audit")
        broker.tasks.spawn(broker.security.follow_files(), "following the administrators' keys")
        broker.tasks.spawn(broker.security.follow_jwks(), "following the keys of tokens")
        broker.port = await self.server.listen()
        if self._founding is None:
            await self._recover()
            await self._note_reboot_soon()
            self._begin_to_serve()
        else:
            self.membership = ClusterMembership(broker, self._founding)
            await self._join(self.membership)
        broker.tasks.spawn(self._beat(), "heartbeat")
        broker.tasks.spawn(self._clean(), "retention")
        broker.tasks.spawn(self._compact(), "compaction")
        broker.tasks.spawn(broker.changed_settings.run(), "applying changed settings")
        broker.tasks.spawn(Scrubber(broker.partitions.all, broker.partitions.tools).run(), "scrubbing")
        broker.tasks.spawn(self._expiry().run(), "expiring groups")
        broker.tasks.spawn(GroupLoading(broker.groups, broker.partitions.find).run(), "loading groups")
        broker.tasks.spawn(
            broker.tls.follow(broker.threads.secrets, broker.metrics.tls_ends_at), "following certificates"
        )
        self.lifecycle.running()

    def _expiry(self) -> GroupExpiry:
        broker = self.broker
        return GroupExpiry(broker.groups, clock=broker.clock, retention_ms=self.settings.group_retention_ms)

    async def _recover(self) -> None:
        await self.broker.recover()

    async def _join(self, membership: ClusterMembership) -> None:
        broker = self.broker
        membership.check_port()
        await membership.open()
        await membership.admit()
        await broker.recover_member()
        await membership.register()
        broker.incarnations.take_part()
        broker.cluster.take_part()
        await self._note_reboot_soon()
        broker.security.registry.permissions.all_read = False
        self._begin_to_serve()
        await membership.begin()
        spawn = broker.tasks.spawn
        spawn(MetaFollower(broker).run(), "following __meta")
        spawn(self._read_rules(), "reading the access rules")
        spawn(RouteLearning(broker).run(), "asking for routes")
        spawn(broker.mover.run(), "moving partitions")
        spawn(BackfillMonitor(broker.partitions.all, broker.metrics).run(), "watching history")
        spawn(AntiEntropy(self.node_id, broker.replication, broker.cluster).run(), "comparing chains")

    async def _read_rules(self) -> None:
        """Make refusals by access rules final once this node has read all of `__meta`.

        Before that, the rule that allows a request may not have been read, so a refusal is retriable.
        """
        while not await self.broker.meta_freshness.is_current():  # noqa: ASYNC110 - each check asks another node
            await asyncio.sleep(RULES_AGAIN_S)
        self.broker.security.registry.permissions.all_read = True

    def _begin_to_serve(self) -> None:
        """Accept requests of clients and nodes, now that the local partitions are known."""
        broker = self.broker
        self.lifecycle.starting = False
        broker.replication.take_part(broker.partitions.adopt_soon)
        broker.waking.begin()
        broker.tasks.spawn(broker.waking.run(), "opening partitions gradually")

    async def _note_reboot_soon(self) -> None:
        """Record a machine restart in each log: now if no closed partition may have data, otherwise in the background.

        Opening many logs takes long, and the node should serve meanwhile.
        """
        if not self.dir.machine_rebooted:
            return
        if next(self.broker.partitions.closed.used(), None) is not None:
            self.broker.tasks.spawn(self._note_reboot(), "recording a machine restart")
        else:
            await self._note_reboot()

    async def _note_reboot(self) -> None:
        broker = self.broker
        await broker.partitions.open_unsynced()
        if broker.cluster.is_alone:
            broker.log_lost_tails()
        await reboot_mark.clear_reboot_mark(self.dir, broker.disk.fs, broker.threads.io, broker.partitions.noted)

    def _start_management(self) -> None:
        broker, tls = self.broker, self.broker.tls
        guard = MetricsGuard.of(self.settings)
        broker.tasks.spawn(guard.follow(broker.threads.secrets), "following the tokens for metrics")
        own = (self.settings.management_host, self.settings.host, self.settings.advertise_host or "")
        names = None if tls.is_on else HostNames(own)
        answers = Answers(self.lifecycle.health, broker.metrics.registry, guard, names)
        self._management = Management(answers, broker.metrics, tls=tls.server if tls.is_on else None)
        self.management_port = self._management.start(self.settings.management_host, self.settings.management_port)

    def _nodes_changed(self) -> None:
        """Update links and moves after a change of the node registry."""
        if self.membership is not None:
            self.membership.look_soon()
            self.broker.mover.wake()
            self.broker.waking.nodes_changed()

    async def run_until_stopped(self) -> int:
        """Serve until the node is asked to stop, stop gracefully, return the process's exit code."""
        await self.lifecycle.asked_to_stop()
        await self.stop()
        return self.lifecycle.exit_code

    async def stop(self) -> None:
        """Stop gracefully: transfer partitions, refuse new requests, finish those in progress, close everything."""
        if not self._is_open:
            return
        broker, health = self.broker, self.lifecycle.health
        if health.state == "running" and not broker.cluster.is_alone:
            await hand_over(broker)
        self.lifecycle.stop()
        await self.server.stop_listening()
        await broker.partitions.opening.close(
            ProtocolError(
                pb.SHUTTING_DOWN, "the node is stopping and has not opened this partition; retry at another node"
            )
        )
        deadline = broker.loop.time() + self.settings.stop_timeout_ms / 1000
        partitions = broker.partitions.all()
        await self._finish_pending(partitions, deadline)
        if self.membership is not None:
            await self.membership.close()
        await self.server.close_connections(deadline)
        await broker.tasks.cancel()
        await asyncio.gather(*map(self._close, partitions))
        broker.taken_over.log_collected()
        await broker.replication.close()
        await broker.incarnations.close()
        self.close()
        if health.state == "stopping":
            self.dir.mark_clean()

    def close(self) -> None:
        """Close everything and end the threads without waiting for work in progress; see `stop`."""
        if self._management is not None:
            self._management.stop()
        if self.server.spans is not None:
            self.server.spans.close()
        self.broker.close()

    async def _finish_pending(self, partitions: list[Partition], deadline: float) -> None:
        """Wait for requests in progress until the deadline, then refuse the remaining ones."""
        broker = self.broker
        broker.accounts.release()
        broker.bounds.turns.stop()
        for partition in partitions:
            partition.changes.wake()
        broker.route_news.wake()
        # At the deadline, unwritten batches are refused below; other requests get no answer, as after a crash.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.server.requests_finished()
                for partition in partitions:
                    await partition.pipeline.idle()
        late = ProtocolError(
            pb.SHUTTING_DOWN, "the node is stopping and has not written this batch; retry at another node"
        )
        for partition in partitions:
            partition.pipeline.refuse(late)

    async def _close(self, partition: Partition) -> None:
        try:
            await partition.close()
        except StorageFailedError as error:
            self.lifecycle.storage_failed(partition.name, error)

    async def _beat(self) -> None:
        broker, health = self.broker, self.lifecycle.health
        disk_log = DiskLog(self.dir.path, time.monotonic)
        while True:
            health.beat()
            health.no_quorum = self._without_quorum()
            health.disk_full = self._disk_is_full()
            disk_log.look(is_full=health.disk_full, refused=broker.full_disk.count)
            broker.metrics.in_flight_bytes.set(broker.bounds.budget.used_bytes)
            broker.metrics.outgoing_bytes.set(broker.bounds.send_budget.used_bytes)
            broker.metrics.clock_held.set(broker.clock.is_held)
            broker.metrics.ring_bytes.set(broker.rings.size_bytes)
            broker.metrics.deduplication_bytes.set(broker.contents.used_bytes)
            broker.metrics.index_bytes.set(broker.disk.hash_memory.size_bytes)
            left = unwritten(broker.disk)
            broker.metrics.unwritten_bytes.set(left.backlog_bytes)
            broker.metrics.unwritten_partitions.set(left.stopped)
            divide_window_memory(broker.replication.pushing(), self.settings.push_windows_bytes)
            await asyncio.sleep(_HEARTBEAT_S)

    def _disk_is_full(self) -> bool:
        """Return whether the disk is full, or a publish was recently refused for lack of space, as by a disk quota."""
        disk = os.statvfs(self.dir.path)
        if disk.f_bavail * disk.f_frsize < DISK_FREE_BYTES_MIN:
            return True
        return self.broker.full_disk.at_s >= time.monotonic() - DISK_FULL_S

    def _without_quorum(self) -> list[str]:
        cluster = self.broker.cluster
        if all(cluster.alive(node.node_id) for node in cluster.nodes()):
            return []
        return [partition.name for partition in self.broker.partitions.all() if partition.state.lacks_quorum]

    async def _compact(self) -> None:
        """Compact due partitions, one after the other."""
        while True:
            for partition in self.broker.partitions.all():
                if not partition.compaction.wants_check:
                    continue
                try:
                    await partition.compaction.check()
                except StorageFailedError as error:
                    self.lifecycle.storage_failed(partition.name, error)
                    return
                except (ProtocolError, WorkersFullError) as error:
                    log.warning("%s: compaction failed and is retried later: %s", partition.name, error)
            await asyncio.sleep(self.settings.retention_interval_ms / 1000)

    async def _clean(self) -> None:
        """Delete old segments. With many partitions each is checked less often; appends also trigger checks."""
        interval_s = self.settings.retention_interval_ms / 1000
        while True:
            for number, partition in enumerate(self.broker.partitions.all(), 1):
                try:
                    await partition.retention.check()
                except StorageFailedError as error:
                    self.lifecycle.storage_failed(partition.name, error)
                    return
                except (ProtocolError, WorkersFullError) as error:
                    log.warning("%s: retention failed and is retried later: %s", partition.name, error)
                if number % RETENTION_LOOKS_MAX == 0:
                    await asyncio.sleep(interval_s)
            await asyncio.sleep(interval_s)
