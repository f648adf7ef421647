"""Several nodes in the test's own process and event loop; the test sets their links and their view of live nodes.

Messages between nodes are encoded and decoded as on the wire and arrive in order; clients use real connections. There
is no `__meta`: the test announces the topic to every node. Membership and gossip have tests of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.peer import Peer, batch
from tests.broker.stand import DEFAULTS, abort_connections, settled

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.ports import Batch, Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.node.node import Node
from tidelog_broker.partition.partition import Partition
from tidelog_broker.replication import push_windows
from tidelog_broker.storage.node.node_dir import NodeDir, open_node_dir
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import iter_batches

TOPIC_ID = b"T" * 16
KEY = (TOPIC_ID, 0)
NODES = ("a", "b", "c")


class StandCluster(Cluster):
    """A stand's view of the other nodes, and the transport to them."""

    def __init__(self, stand: ClusterStand, node_id: str, *rest: Any, **named: Any) -> None:
        super().__init__(node_id, *rest, **named)
        self._stand = stand
        self._name = node_id
        self.send = self._carry

    def alive(self, node_id: str) -> bool:
        return node_id == self._name or self._stand.sees(self._name, node_id)

    def incarnation(self, node_id: str) -> int:
        node = self._stand.nodes.get(node_id)
        return node.incarnation if node is not None else 0

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        del key
        flush = active.flush or pb.ALWAYS
        return Plan(self._name, tuple(active.placement), active.ack_quorum, flush, engine=active.engine)

    def settings_plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return None unless the stand applies settings: tests begin epochs with other settings than their topic."""
        return super().settings_plan(key, active) if self._stand.applies_settings else None

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        del key
        before = list(active.placement)[: list(active.placement).index(self._name)]
        return sum(1 for node in before if self.alive(node))

    def _carry(self, to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
        data = b"".join(batches)
        for node_id in to:
            copy = type(message).FromString(message.SerializeToString())
            asyncio.get_running_loop().call_soon(self._stand.deliver, self._name, node_id, copy, data)


class StandNode(Node):
    """A node that gets its topic from the test and reads no `__meta`."""

    def __init__(self, stand: ClusterStand, settings: NodeSettings, directory: NodeDir, disk: FaultyDisk) -> None:
        super().__init__(settings, directory, cluster=partial(StandCluster, stand), fs=disk)
        self._stand = stand

    async def _recover(self) -> None:
        record = self._stand.record
        self.broker.topics.apply(record)
        await self.broker.partitions.follow(record)


def others(node_id: str) -> list[str]:
    """Return the nodes except one."""
    return [name for name in NODES if name != node_id]


class ClusterStand:
    """Nodes by id. Messages from and to nodes in `cut` are lost; failure detection is set separately.

    `suspected` nodes are thought dead by the others and think themselves that all is well; nodes in `known` are
    known to be cut off, on both sides.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: dict[str, StandNode] = {}
        self.disks: dict[str, FaultyDisk] = {}
        self.cut: set[str] = set()
        self.suspected: set[str] = set()
        self.known: set[str] = set()
        self.record = pb.TopicRecord()
        self.key: PartitionKey = KEY
        """The partition that `partition` and `owners` are about."""
        self.settings: dict[str, Any] = {"stop_timeout_ms": 500}
        self.applies_settings = False
        """Whether changed settings of the topic take effect by themselves."""
        self.peers: list[Peer] = []
        self._dirs: dict[str, NodeDir] = {}

    # --- nodes -----------------------------------------------------------------------------------------

    async def start(
        self,
        *node_ids: str,
        quorum: int = 2,
        flush: pb.Flush = pb.ALWAYS,
        retention_bytes: int = 0,
        engine: str = "",
        **settings: Any,
    ) -> None:
        """Start nodes (all three unless told otherwise); settings stay for the starts that follow."""
        self.settings |= settings
        if not self.record.name:
            genesis = pb.EpochDescriptor(placement=NODES, ack_quorum=quorum, flush=flush, engine=engine)
            config = pb.TopicConfig(
                partitions=1,
                flush=flush,
                flush_interval_ms=1,
                segment_bytes=64 * 1024,
                replication_factor=3,
                ack_quorum=quorum,
                retention_bytes=retention_bytes,
                engine=engine,
            )
            self.record = pb.TopicRecord(name="t", topic_id=TOPIC_ID, config=config, revision=1, first_epochs=[genesis])
        for node_id in node_ids or NODES:
            disk = self.disks[node_id] = FaultyDisk()
            home = self.path / node_id
            directory = self._dirs[node_id] = open_node_dir(home, node_id=node_id)
            checked = NodeSettings(data=home, **DEFAULTS).model_copy(update=self.settings)
            node = StandNode(self, checked, directory, disk)
            await node.start()
            node.broker.inline_writes.took(0, math.inf, math.inf, sleeps_before=-1)
            self.nodes[node_id] = node
        self.tell()

    def tell(self) -> None:
        """Let all nodes evaluate the live nodes again."""
        for node in self.nodes.values():
            node.broker.liveness_changed()

    def sees(self, here: str, there: str) -> bool:
        return there in self.nodes and not {here, there} & self.known and there not in self.suspected

    def deliver(self, sender: str, to: str, message: Any, data: bytes) -> None:
        node = self.nodes.get(to)
        if node is None or sender not in self.nodes or {sender, to} & self.cut:
            return
        views = list(iter_batches(memoryview(bytearray(data)))) if data else []
        node.broker.replication.receive(sender, message, [Batch(unpack_header(view), view) for view in views])

    def isolate(self, *node_ids: str) -> None:
        """Cut nodes off from all others; without names, restore all links."""
        self.cut = self.known = set(node_ids)
        self.suspected = set()
        self.tell()

    def suspect(self, node_id: str) -> None:
        """Cut a node off, which the others detect and it does not."""
        self.cut = self.suspected = {node_id}
        for name, node in self.nodes.items():
            if name != node_id:
                node.broker.liveness_changed()

    async def stop(self, node_id: str) -> None:
        """Stop a node gracefully."""
        node = self.nodes[node_id]
        node.lifecycle.ask_to_stop()
        await node.run_until_stopped()
        del self.nodes[node_id]
        self._forget(node_id)

    async def crash(self, node_id: str) -> None:
        """End a node as kill -9 does."""
        self.disks[node_id].kill()
        node = self.nodes.pop(node_id)
        abort_connections(node)  # at once, so that no client learns of the closed disk
        await node.server.stop_listening()
        abort_connections(node)
        await node.broker.tasks.cancel()
        await node.broker.replication.close()
        for partition in node.broker.partitions.all():
            partition._cancel_sync()
            for log in partition.log.epochs:
                with contextlib.suppress(Exception):  # a kill closes every file, whatever state its log was in
                    log.close(sync=False)
        node.close()
        await asyncio.sleep(0)  # answers of the workers that were on their way
        self._forget(node_id)

    def _forget(self, node_id: str) -> None:
        self._dirs.pop(node_id).close()
        self.tell()

    async def close(self) -> None:
        """End everything."""
        for disk in self.disks.values():
            disk.heal()
        self.isolate()
        for peer in self.peers:
            await peer.close()
        for node_id in list(self.nodes):
            await self.stop(node_id)

    # --- what tests look at ----------------------------------------------------------------------------

    def partition(self, node_id: str) -> Partition:
        return self.nodes[node_id].broker.partitions.get(*self.key)

    def owners(self) -> list[str]:
        """The nodes that may give out offsets."""
        found = {name: node.broker.partitions.find(self.key) for name, node in self.nodes.items()}
        return [name for name, one in found.items() if one is not None and one.state.assigner is not None]

    async def owner(self, *, but: str = "") -> str:
        """Wait for an owner other than `but`."""

        def there_is_one() -> bool:
            return any(name != but for name in self.owners())

        await settled(there_is_one, "no node took over")
        return next(name for name in self.owners() if name != but)

    async def peer(self, node_id: str) -> Peer:
        peer = await Peer.connect(self.nodes[node_id].port)
        self.peers.append(peer)
        await peer.greet()
        return peer

    async def publish(self, *values: bytes, to: str = "", acks: pb.Acks = pb.QUORUM) -> list[pb.PublishResult]:
        """Publish each value as a batch, to the owner unless told otherwise."""
        peer = await self.peer(to or await self.owner())
        data = [batch(value) for value in values]
        entries = [pb.PublishEntry(topic_id=TOPIC_ID, length=len(one)) for one in data]
        return await peer.published(peer.post(b"".join(data), publish=pb.Publish(entries=entries, acks=acks)))

    async def read(self, node_id: str) -> list[bytes | None]:
        """Return the records that a node serves, after its committed records are on its disk."""
        one = self.partition(node_id)
        await settled(
            lambda: one.state.readable_end == one.state.high_watermark, "committed records are not on the disk"
        )
        return await (await self.peer(node_id)).read_all(TOPIC_ID)

    async def holding(self, committed: bytes, uncommitted: bytes) -> str:
        """Have every node hold one record, and the owner one that no other node can store; return the owner."""
        owner = await self.owner()
        await self.publish(committed)
        await self.agree(committed)
        for name in self.nodes:
            if name != owner:
                self.disks[name].hold("sync")
        (await self.peer(owner)).post_publish(TOPIC_ID, batch(uncommitted))
        await settled(lambda: self.partition(owner).log.end_offset == 2, "the owner has not written it")
        return owner

    async def agree(self, *values: bytes) -> None:
        """Wait until every node holds and serves exactly these values."""
        count = len(values)
        await settled(
            lambda: all(
                (one.state.readable_end, one.log.end_offset) == (count, count) and not one.replica.backfill.incomplete
                for one in (self.partition(name) for name in self.nodes)
            ),
            "the nodes do not agree",
        )
        for name in self.nodes:
            assert await self.read(name) == list(values)


def bound_windows(stand: ClusterStand, owner: str, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound the push windows, now and each time that the node shares them out again."""
    for name in ("WINDOW_BYTES_MAX", "WINDOW_BYTES_MIN"):
        monkeypatch.setattr(push_windows, name, window_bytes)
    stand.partition(owner).replica.ownership.bound_window(window_bytes)


@asynccontextmanager
async def started_cluster(path: Path) -> AsyncIterator[ClusterStand]:
    """A stand without nodes, closed in the end."""
    stand = ClusterStand(path)
    try:
        yield stand
    finally:
        await stand.close()
