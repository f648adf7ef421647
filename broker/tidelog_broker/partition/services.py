"""What every part of a node shares: settings, identity, threads, disk, epochs, metrics, and the node's fate.

The parts (partitions, state logs, the server) are built on this and know nothing of each other's owner, so that
imports run one way: services ◄ partitions ◄ broker ◄ handlers ◄ server ◄ node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.management import Health
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.route_watch import RouteNews
from tidelog_broker.core.replication.inline_writes import InlineWrites
from tidelog_broker.replication.driver_ports import Tools
from tidelog_broker.replication.journals import Chains
from tidelog_broker.replication.replicas import Replication
from tidelog_broker.replication.rings import RingBudget
from tidelog_broker.replication.takeover_log import TakenOver
from tidelog_broker.storage.io.background import Background
from tidelog_broker.storage.io.filesystem import FileSystem, RealFileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.node.fences import FenceJournal
from tidelog_broker.storage.node.meta_journal import MetaJournal
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.partition.partition_dirs import sweep_trash
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.wire.arriving import Arriving
from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.outgoing import Outgoing
from tidelog_broker.wire.peers import Peers
from tidelog_broker.wire.turns import Turns
from tidelog_proto.errors import ProtocolError
from tidelog_proto.idle_poll import IdlePoll

log = logging.getLogger(__name__)

JOURNALS: Final = 2
"""Fences and chains; each has a thread."""


class _Closable(Protocol):
    def close(self) -> None: ...


ClosableT = TypeVar("ClosableT", bound=_Closable)


class Services:
    """Made with nothing running; `open_services` starts threads and opens journals.

    Args:
        settings: what the node is told.
        directory: its data directory, open and locked.
        fs: the files, the real ones unless given.
    """

    cluster: Cluster
    """The other nodes; made by whoever knows the topics, before the services are opened."""

    def __init__(self, settings: NodeSettings, directory: NodeDir, *, fs: FileSystem | None = None) -> None:
        self.settings = settings
        self.dir = directory
        self.node_id = directory.node_id
        self.cluster_id = directory.cluster_id
        self.incarnation = directory.incarnation
        self.metrics = NodeMetrics()
        self.health = Health()
        self.rings = RingBudget(settings.rings_bytes)
        self.budget = Budget(settings.node_in_flight_bytes)
        """Attachments and large envelopes of the requests being worked on, all connections together."""
        self.arriving = Arriving(self.budget)
        self.outgoing = Outgoing(
            bytes_max=settings.node_outgoing_bytes,
            connection_bytes_max=settings.connection_outgoing_bytes,
            stall_ms=settings.write_stall_ms,
        )
        self.followed = 0
        """Partitions that the subscriptions of all connections follow together."""
        self.inline_writes = InlineWrites()
        self.taken_over = TakenOver()
        self.route_news = RouteNews()
        self.turns = Turns()
        self.open_connections = 0
        self.open_clients = 0
        """Of these, those that have said HELLO."""
        self.peers: Peers | None = None
        """The other nodes, as callers; None on a node that stands alone."""
        self.starting = False
        """The node listens, but cannot answer clients yet."""
        self.stopping = False
        self.exit_code = 0
        self.stop_reason = ""
        """Why the node stops by itself; empty while it does not."""
        self.port = 0
        self.is_open = False
        """Whether the journals could be opened; without them nothing else begins."""
        self._fs = fs or RealFileSystem()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_asked = asyncio.Event()
        self._resources = contextlib.ExitStack()

    async def open_services(self) -> None:
        """Start the threads, open the journals, clear the trash.

        Raises:
            ProtocolError: a journal is damaged or cannot be read.
        """
        self.loop = asyncio.get_running_loop()
        io_workers, journal_workers, read_workers, ahead_workers, note_workers, verify_workers = (
            self._own(IoWorkers(count, name=name))
            for name, count in (
                ("io", self.settings.io_workers),
                ("journal", JOURNALS),
                ("read", self.settings.io_workers),
                ("ahead", 1),
                ("note", 1),
                ("verify", 1),
            )
        )
        self.io = Offload(io_workers, self.loop)
        self.journals = Offload(journal_workers, self.loop)
        """For the journals alone: syncing a log may take seconds, and no other partition's takeover waits for that."""
        self.readers = Offload(read_workers, self.loop)
        self.ahead = Offload(ahead_workers, self.loop)
        """For syncs that nobody waits for, so that no append and no takeover does; one at a time."""
        self.notes = Offload(note_workers, self.loop)
        """For small files beside the logs, and for what a deletion waits for."""
        self.verifiers = Offload(verify_workers, self.loop)
        self.idle_poll = IdlePoll(
            self.loop,
            self.settings.idle_poll_us,
            # What a worker is at is waited for asleep: it needs the interpreter itself.
            may_poll=lambda: self.io.idle and self.journals.idle,
        )
        self.disk = Disk(
            fs=self._fs,
            preallocator=self._own(Background("preallocate")),
            syncer=self._own(Background("sync")),
            namer=self._own(Background("name")),
        )
        meta = self._own(MetaJournal.open(self.disk.fs, self.dir.meta_journal))
        fences = self._own(FenceJournal.open(self.disk.fs, self.dir.fences))
        self.replication = self._replication(meta, fences)
        self.is_open = True
        await self.io.call(0, sweep_trash, self.disk.fs, self.dir.partitions)

    def _replication(self, meta: MetaJournal, fences: FenceJournal) -> Replication:
        chains = Chains(
            meta,
            fences,
            offload=self.journals,
            failed=lambda error: self.storage_failed("the journals", error),
            full=self.journal_full,
        )
        tools = Tools(
            io=self.io,
            readers=self.readers,
            ahead=self.ahead,
            fs=self.disk.fs,
            chains=chains,
            neighbours=self.cluster,
            inline_writes=self.inline_writes,
            peers_budget=lambda: self.peers.budget if self.peers is not None else None,
            now_ms=lambda: int(self.loop.time() * 1000),
            wall_us=lambda: time.time_ns() // 1000,
            group_bytes=self.settings.group_bytes,
        )
        return Replication(self.node_id, self.incarnation, tools=tools, rebooted=self.dir.machine_rebooted)

    def journal_full(self, error: ProtocolError) -> None:
        """A journal has no space for what would begin an epoch; it is tried again by itself."""

    def _own(self, resource: ClosableT) -> ClosableT:
        """Close `resource` when the node stops, the newest first."""
        self._resources.callback(resource.close)
        return resource

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

    def ask_to_stop(self) -> None:
        """Begin a graceful stop; safe to call twice."""
        self._stop_asked.set()

    def give_up(self, why: str) -> None:
        """This node must not go on: its identity is somebody else's. It stops, and says so by its exit code."""
        if self.exit_code == 0:
            log.critical("the node stops: %s", why)
            self.health.state = "failed"
            self.exit_code = os.EX_CONFIG
            self.stop_reason = why
        self.ask_to_stop()

    def storage_failed(self, name: str, error: BaseException) -> None:
        """A write or sync failed. It is never retried: the node stops serving this disk."""
        log.critical("storage failed at %s, the node stops: %s", name, error)
        self.health.state = "failed"
        self.exit_code = os.EX_IOERR
        self.stop_reason = self.stop_reason or f"storage failed at {name}: {error}"
        self.ask_to_stop()
