"""The node's life: start the parts in order, serve, stop them in the other order.

Start: threads and journals (`services`), then every port, so that one in use is found before anything is written to a
log or a chain: a supervisor tries again and again. Admission to a cluster needs the native port, too, because it asks
nodes that may be starting themselves. Until what is stored here is recovered (`broker`), clients are told to come
again. Then gossip, in a cluster, and the replicas take over by themselves what has no owner. Stop: give to other nodes
what is owned here, take no new requests, finish what is in flight, say goodbye, write what a start would otherwise have
to scan, close.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.management import Management
from tidelog_broker.broker import Broker
from tidelog_broker.node import reboot_note
from tidelog_broker.node.admitting import Founding
from tidelog_broker.node.graceful_stop import hand_over
from tidelog_broker.node.membership import Membership
from tidelog_broker.node.meta_follower import MetaFollower, keep_routes
from tidelog_broker.partition.history_watch import HistoryWatch
from tidelog_broker.partition.partition import Partition
from tidelog_broker.replication.anti_entropy import AntiEntropy
from tidelog_broker.replication.push_windows import share_out
from tidelog_broker.server.server import Server
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_HEARTBEAT_S: Final = 0.5


class Node(Broker):
    """One broker. Construct, `await start()`, `await run_until_stopped()`; nothing runs before `start`.

    Args:
        settings: what the node is told.
        directory: its data directory, open and locked.
        founding: how it comes to its cluster; None for a node that stands alone.
        fs: the files, the real ones unless given.
    """

    def __init__(
        self,
        settings: NodeSettings,
        directory: NodeDir,
        *,
        founding: Founding | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        super().__init__(settings, directory, fs=fs)
        self.server = Server(self)
        self.management_port = 0
        self._management = Management(self.health, self.metrics.registry)
        self.membership = Membership(self, founding) if founding is not None else None

    async def start(self) -> None:
        """Recover everything and listen.

        Raises:
            ProtocolError: the data is damaged where a node must not go on.
            IdentityError: the cluster knows this node's id as that of another one.
            OSError: a port is in use, a file cannot be used.
        """
        await self.open_services()
        self._start_management()
        self.starting = True
        self.port = await self.server.listen()
        if self.membership is None:
            await self.recover()
            await self._note_reboot()
            self.starting = False
        else:
            await self._join(self.membership)
        self.spawn(self._beat(), "heartbeat")
        self.spawn(self._clean(), "retention")
        if self.exit_code == 0:  # else it has been told meanwhile that it must not be there
            self.health.state = "running"

    async def _join(self, membership: Membership) -> None:
        membership.check_port()
        membership.open()
        await membership.admit()
        await self.recover_member()
        await self._note_reboot()
        self.starting = False
        await membership.begin()
        self.spawn(MetaFollower(self).run(), "following __meta")
        self.spawn(keep_routes(self), "asking for routes")
        self.spawn(self.mover.run(), "moving partitions")
        self.spawn(HistoryWatch(self.partitions.all, self.metrics).run(), "watching history")
        self.spawn(AntiEntropy(self.node_id, self.replication, self.cluster).run(), "comparing chains")

    async def _note_reboot(self) -> None:
        logs = [partition.log for partition in self.partitions.all()]
        await reboot_note.note_reboot(self.dir, self.disk.fs, self.io, logs)

    def _start_management(self) -> None:
        self.management_port = self._management.start(self.settings.management_host, self.settings.management_port)
        self._resources.callback(self._management.stop)

    def nodes_changed(self) -> None:
        """The registry of nodes has changed: there may be other links to keep, or nodes to move away from."""
        if self.membership is not None:
            self.membership.look_soon()
            self.mover.wake()

    async def asked_to_stop(self) -> None:
        """Wait until the node is asked to stop."""
        await self._stop_asked.wait()

    async def run_until_stopped(self) -> int:
        """Serve until `ask_to_stop`, stop gracefully, return the process's exit code."""
        await self._stop_asked.wait()
        await self.stop()
        return self.exit_code

    async def stop(self) -> None:
        """Stop: hand over what others can own, nothing new, finish what is in flight, close what is open."""
        if not self.is_open:
            self._resources.close()
            return
        if self.health.state == "running" and not self.cluster.is_alone:
            await hand_over(self)
        self.stopping = True
        if self.health.state == "running":
            self.health.state = "stopping"
        await self.server.stop_listening()
        deadline = self.loop.time() + self.settings.stop_timeout_ms / 1000
        partitions = self.partitions.all()
        for partition in partitions:
            partition.changes.wake()
        self.route_news.wake()
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
        if self.membership is not None:
            await self.membership.close()
        await self.server.close_connections(deadline)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._close, partitions))
        self.taken_over.tell()
        await self.replication.close()
        self._resources.close()
        if self.health.state == "stopping":
            self.dir.mark_clean()

    async def _close(self, partition: Partition) -> None:
        try:
            await partition.close()
        except StorageFailedError as error:
            self.storage_failed(partition.name, error)

    async def _beat(self) -> None:
        while True:
            self.health.beat()
            self.health.no_quorum = self._without_quorum()
            self.metrics.in_flight_bytes.set(self.budget.in_flight_bytes)
            self.metrics.outgoing_bytes.set(self.outgoing.total_bytes)
            self.metrics.ring_bytes.set(self.rings.size_bytes)
            owners = [driver.replica.ownership for driver in self.replication.all() if driver.replica.owner is not None]
            share_out(owners, self.settings.push_windows_bytes)
            await asyncio.sleep(_HEARTBEAT_S)

    def _without_quorum(self) -> list[str]:
        if all(self.cluster.alive(node.node_id) for node in self.cluster.nodes()):
            return []
        return [partition.name for partition in self.partitions.all() if partition.state.lacks_quorum]

    async def _clean(self) -> None:
        """Delete old segments, and keep the gauges of sizes current."""
        while True:
            for partition in self.partitions.all():
                try:
                    await partition.retention.look()
                except StorageFailedError as error:
                    self.storage_failed(partition.name, error)
                    return
                partition.measure()
            await asyncio.sleep(self.settings.retention_interval_ms / 1000)
