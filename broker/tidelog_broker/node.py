"""The node: puts the parts together, starts them in order, and stops them in the other order.

Start: lock the data directory and take a new incarnation, load fences and chains, replay `__meta`, open
the logs of its topics (which recovers them), replay `__offsets`, then listen. Stop: take no new requests,
finish what is in flight, write what a start would otherwise have to scan, close, unlock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from tidelog_broker.config import NodeSettings
from tidelog_broker.core.groups import GroupOffsets
from tidelog_broker.core.topics import TopicRegistry, complete_config
from tidelog_broker.epochs import Epochs
from tidelog_broker.management import Health, Management
from tidelog_broker.metrics import NodeMetrics
from tidelog_broker.offload import Offload
from tidelog_broker.partition import Partition
from tidelog_broker.partitions import Partitions
from tidelog_broker.rings import RingBudget
from tidelog_broker.server import SOFTWARE, Server
from tidelog_broker.state_log import MetaLog, OffsetsLog
from tidelog_broker.storage.background import Background
from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.errors import StorageFailedError
from tidelog_broker.storage.fences import FenceJournal
from tidelog_broker.storage.meta_journal import MetaJournal
from tidelog_broker.storage.node_dir import NodeDir
from tidelog_broker.storage.partition_log import sweep_trash
from tidelog_broker.storage.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC

log = logging.getLogger(__name__)

META_TOPIC_ID: Final = bytes(15) + b"\x01"
OFFSETS_TOPIC_ID: Final = bytes(15) + b"\x02"
INTERNAL_SEGMENT_BYTES: Final = 4 * MIB
_HEARTBEAT_S: Final = 0.5


class _Closable(Protocol):
    def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=_Closable)


class Node:
    """One broker. Construct, `await start()`, `await run_until_stopped()`; nothing runs before `start`."""

    def __init__(self, settings: NodeSettings, directory: NodeDir) -> None:
        self.settings = settings
        self.dir = directory
        self.node_id = directory.node_id
        self.cluster_id = directory.cluster_id
        self.incarnation = directory.incarnation
        self.metrics = NodeMetrics()
        self.health = Health()
        self.topics = TopicRegistry()
        self.groups = GroupOffsets()
        self.partitions = Partitions(self)
        self.rings = RingBudget(settings.rings_bytes)
        self.server = Server(self)
        self.stopping = False
        self.exit_code = 0
        self.port = 0
        self.management_port = 0
        self.changing_topics = asyncio.Lock()
        self._started_s = time.monotonic()
        self._management = Management(self.health, self.metrics.registry)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_asked = asyncio.Event()
        self._resources = contextlib.ExitStack()

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything and listen.

        Raises:
            ProtocolError: the data is damaged where a node must not go on.
            OSError: a port is in use, a file cannot be used.
        """
        self.loop = asyncio.get_running_loop()
        io_workers, read_workers, verify_workers = (
            self._own(IoWorkers(count, name=name))
            for name, count in (("io", self.settings.io_workers), ("read", self.settings.io_workers), ("verify", 1))
        )
        self.io = Offload(io_workers, self.loop)
        self.readers = Offload(read_workers, self.loop)
        self.verifiers = Offload(verify_workers, self.loop)
        self.disk = Disk(preallocator=self._own(Background("preallocate")), syncer=self._own(Background("sync")))
        meta = self._own(MetaJournal.open(self.disk.fs, self.dir.meta_journal))
        fences = self._own(FenceJournal.open(self.disk.fs, self.dir.fences))
        self.epochs = Epochs(
            node_id=self.node_id, incarnation=self.incarnation, meta=meta, fences=fences, offload=self.io
        )
        self.epochs.load(meta.entries())
        await self.io.call(0, sweep_trash, self.disk.fs, self.dir.partitions)
        await self._recover_state()
        self.management_port = self._management.start(self.settings.management_host, self.settings.management_port)
        self._resources.callback(self._management.stop)
        self.port = await self.server.listen()
        self.spawn(self._beat(), "heartbeat")
        self.spawn(self._clean(), "retention")
        self.health.state = "running"

    def _own(self, resource: ClosableT) -> ClosableT:
        """Close `resource` when the node stops, the newest first."""
        self._resources.callback(resource.close)
        return resource

    async def _recover_state(self) -> None:
        self.meta_log = MetaLog(self, await self._internal(META_TOPIC, META_TOPIC_ID))
        await self.meta_log.replay()
        for record in self.topics.live():
            await self.partitions.follow(record)
        self.offsets_log = OffsetsLog(self, await self._internal(OFFSETS_TOPIC, OFFSETS_TOPIC_ID))
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

    async def run_until_stopped(self) -> int:
        """Serve until `ask_to_stop`, stop gracefully, return the process's exit code."""
        await self._stop_asked.wait()
        await self.stop()
        return self.exit_code

    def ask_to_stop(self) -> None:
        """Begin a graceful stop; safe to call twice."""
        self._stop_asked.set()

    def storage_failed(self, name: str, error: BaseException) -> None:
        """A write or sync failed. It is never retried: the node stops serving this disk."""
        log.critical("storage failed at %s, the node stops: %s", name, error)
        self.health.state = "failed"
        self.exit_code = os.EX_IOERR
        self.ask_to_stop()

    async def stop(self) -> None:
        """Stop: nothing new, finish what is in flight, close what is open."""
        self.stopping = True
        if self.health.state == "running":
            self.health.state = "stopping"
        self.server.stop_listening()
        deadline = self.loop.time() + self.settings.stop_timeout_ms / 1000
        partitions = self.partitions.all()
        for partition in partitions:
            partition.wake()
        with contextlib.suppress(TimeoutError):  # what is not done by then gets no answer, as after a crash
            async with asyncio.timeout_at(deadline):
                await self.server.worked_off()
                for partition in partitions:
                    await partition.pipeline.idle()
        late = ProtocolError(
            pb.SHUTTING_DOWN, "the node stopped before this had its turn; send to another or again later"
        )
        for partition in partitions:
            partition.pipeline.refuse(late)
        await self.server.close_connections(deadline)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for partition in partitions:
            try:
                await partition.close()
            except StorageFailedError as error:
                self.storage_failed(partition.name, error)
        self._resources.close()
        if self.health.state == "stopping":
            self.dir.mark_clean()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine that belongs to the node's life; a failure is a bug and is logged."""
        task = self.loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %r", task.get_name(), error, exc_info=error)

    # --- what it says about itself ---------------------------------------------------------------------

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
            connections=len(self.server.connections),
            in_flight_bytes=self.server.budget.in_flight_bytes,
            data_bytes=sum(partition.log.size_bytes for partition in self.partitions.all()),
            disk_free_bytes=disk.f_bavail * disk.f_frsize,
            state=self.health.state,
        )

    # --- in the background -----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            self.health.beat()
            self.metrics.in_flight_bytes.set(self.server.budget.in_flight_bytes)
            self.metrics.ring_bytes.set(self.rings.size_bytes)
            await asyncio.sleep(_HEARTBEAT_S)

    async def _clean(self) -> None:
        """Delete old segments, and keep the gauges of sizes current."""
        while True:
            for partition in self.partitions.all():
                try:
                    await partition.retain()
                except StorageFailedError as error:
                    self.storage_failed(partition.name, error)
                    return
                partition.measure()
            await asyncio.sleep(self.settings.retention_interval_ms / 1000)
