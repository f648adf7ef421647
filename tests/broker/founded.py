"""A real cluster in the test's own process: nodes with a bootstrap file, gossip and links over loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.bootstraps import make_bootstrap, save
from tests.broker.peer import Peer, batch
from tests.broker.stand import DEFAULTS, abort_connections

from tidelog_broker.base.bootstrap import Founder
from tidelog_broker.base.config import NodeSettings
from tidelog_broker.core.topics import META_KEY, PartitionKey
from tidelog_broker.metadata.features import FEATURES
from tidelog_broker.node.join import open_founding
from tidelog_broker.node.node import Node
from tidelog_broker.partition.partition import Partition
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto import broker_pb2 as pb

WAIT_S = 30


class Used(NamedTuple):
    """A topic's only partition, with a copy on every node: its owner, and another node."""

    topic_id: bytes
    owner: str
    other: str


class Founded:
    """Nodes by id; founders are started with the bootstrap file, joiners with seeds.

    `roles` are those of founders that do not have both.
    """

    def __init__(
        self, path: Path, names: tuple[str, ...] = ("a", "b", "c"), roles: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        self.path = path
        self.nodes: dict[str, Node] = {}
        self._dirs: dict[str, NodeDir] = {}
        self._peers: list[Peer] = []
        self.settings: dict[str, object] = {}
        """For every node that is started from now on."""
        self.own: dict[str, dict[str, object]] = {}
        """The same for one of them."""
        self.features: dict[str, frozenset[str]] = {}
        """The features of nodes that simulate an older build, by node."""
        self._founders = names
        self.ports = dict(zip((*names, "d", "e"), free_ports(len(names) + 2), strict=True))
        founders = [
            Founder.model_validate(
                {"node_id": name, "host": "127.0.0.1", "port": self.ports[name]}
                | ({"roles": roles[name]} if roles is not None and name in roles else {})
            )
            for name in names
        ]
        save(make_bootstrap("test", founders), path / "cluster.json")
        (path / "secret").touch(mode=0o600)
        (path / "secret").write_text("a secret for tests")

    async def found(self, *names: str) -> None:
        """Start founders, all at once: they wait for each other."""
        await asyncio.gather(*map(self.start, names or self._founders))

    async def start(self, name: str, *, data: str = "", replaces: bool = False) -> Node:
        told: dict[str, object] = {"bootstrap": self.path / "cluster.json"}
        if replaces:  # its id is not in the file, which would tell its port
            told["port"] = free_ports(1)[0]
        return await self.start_as(name, data or name, told, replaces=replaces)

    async def join(self, name: str = "d", *seeds: str, data: str = "") -> Node:
        """Start a node that knows nothing but seeds."""
        addresses = [f"127.0.0.1:{self.ports[seed]}" for seed in seeds or tuple(self.nodes)]
        told = {"seeds": addresses, "port": self.ports[name]}
        return await self.start_as(name, data or name, told)

    async def start_as(self, name: str, data: str, told: dict[str, object], *, replaces: bool = False) -> Node:
        common = DEFAULTS | {"stop_timeout_ms": 2000, "node_id": name, "secret_file": self.path / "secret"}
        del common["port"]
        settings = NodeSettings.model_validate(
            common | {"data": self.path / data} | self.settings | self.own.get(name, {}) | told
        )
        opened = await open_founding(settings, replaces=replaces)
        supported = self.features.get(name, FEATURES)
        node = Node(opened.settings, opened.directory, founding=opened.founding, features=supported)
        try:
            await node.start()
        except BaseException:
            await node.stop()
            opened.directory.close()
            raise
        self.nodes[node.node_id] = node
        self._dirs[node.node_id] = opened.directory
        return node

    async def stop(self, name: str) -> int:
        node = self.nodes.pop(name)
        node.lifecycle.ask_to_stop()
        code = await node.run_until_stopped()
        self._dirs.pop(name).close()
        return code

    @contextlib.asynccontextmanager
    async def beside(self, name: str) -> AsyncIterator[Node]:
        """Let a node run while a copy of it is started, which is stopped afterwards."""
        node, directory = self.nodes.pop(name), self._dirs.pop(name)
        try:
            yield node
        finally:
            if name in self.nodes:
                await self.stop(name)
            self.nodes[name], self._dirs[name] = node, directory

    async def crash(self, name: str) -> None:
        """End a node like kill -9: no notification, no handover, broken connections."""
        node = self.nodes.pop(name)
        abort_connections(node)
        await node.server.stop_listening()
        abort_connections(node)
        await node.broker.tasks.cancel()
        if node.membership is not None:
            node.lifecycle.exit_code = 1  # otherwise it leaves gracefully
            await node.membership.close()
        await node.broker.replication.close()
        for partition in node.broker.partitions.all():
            for log in partition.log.epochs:
                with contextlib.suppress(Exception):  # a kill closes every file, whatever state its log was in
                    log.close(sync=False)
        node.close()
        await asyncio.sleep(0)  # answers of the workers that were on their way
        self._dirs.pop(name).close()

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()
        await asyncio.gather(*(self.stop(name) for name in list(self.nodes)))

    async def peer(self, name: str, *, greet: bool = True) -> Peer:
        """Return a client of one node."""
        peer = await Peer.connect(self.nodes[name].port)
        self._peers.append(peer)
        if greet:
            await peer.greet()
        return peer

    async def until(self, condition: Callable[[], bool], message: str) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110 - the condition has no event that a test could await
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(message) from None

    async def settled(self) -> None:
        """Wait until `__meta` has an owner, every node is registered and linked, and all have applied it."""

        def agreed() -> bool:
            nodes = list(self.nodes.values())
            registered = all(
                (record := one.broker.nodes.get(other.node_id)) is not None and record.incarnation == other.incarnation
                for one in nodes
                for other in nodes
            )
            met = all(
                one is other or (one.broker.cluster.alive(other.node_id) and other.node_id in one.broker.cluster.linked)
                for one in nodes
                for other in nodes
            )
            return registered and met and len({self.owner(META_KEY, name) for name in self.nodes} - {""}) == 1

        await self.until(agreed, "the nodes never agreed")
        await self.until(
            lambda: all(one.broker.topics.exists("__offsets") for one in self.nodes.values()), "no __offsets"
        )
        await self.until(
            lambda: all(one.broker.security.registry.permissions.all_read for one in self.nodes.values()),
            "a node has not read all rules, so its refusals are not final",
        )

    async def copies(self, key: PartitionKey, *, end_offset: int = 0) -> list[Partition]:
        """Return the records of each node in a partition stored by all, once all serve it up to an offset.

        Topics and committed records are known to a quorum first, and to the others a moment later.
        """

        def level() -> bool:
            found = [node.broker.partitions.find(key) for node in self.nodes.values()]
            return all(copy is not None and copy.state.readable_end >= end_offset for copy in found)

        await self.until(level, "the copies are not level")
        return [node.broker.partitions.get(*key) for node in self.nodes.values()]

    async def used(self) -> Used:
        """Make a topic of one partition with one record, `first`, that every node has and knows to be committed."""
        peer = await self.peer(next(iter(self.nodes)))
        topic = await peer.create(replication_factor=len(self.nodes))
        await self.publish(peer, topic.topic_id, b"first")
        copies = await self.copies((topic.topic_id, 0), end_offset=1)
        owner = copies[0].state.owner_id
        return Used(topic.topic_id, owner, next(name for name in self.nodes if name != owner))

    async def spread(self, peer: Peer, partitions: int, name: str = "spread") -> pb.TopicInfo:
        """Create a topic of which every node owns something; where a partition goes is a matter of the topic's id."""
        number = 0
        while True:
            topic = await peer.create(f"{name}-{number}", partitions=partitions, replication_factor=3)
            if {partition.owner for partition in topic.partitions} == set(self.nodes):
                return topic
            number += 1

    async def remove(self, peer: Peer, node_id: str) -> None:
        """Remove a drained node as soon as that is allowed: when complete copies exist elsewhere."""
        refused = ""
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    answer = (await peer.ask(cluster_change=pb.ClusterChange(remove=node_id))).envelope
                    if not answer.HasField("error"):
                        return
                    refused = answer.error.message
                    assert answer.error.code == pb.INVALID_REQUEST, refused
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(refused) from None

    def owner(self, key: PartitionKey, seen_by: str) -> str:
        return self.nodes[seen_by].broker.routes.owner(key)

    async def publish(self, peer: Peer, topic_id: bytes, *values: bytes, partition: int = 0) -> pb.PublishResult:
        """Publish like a client: try again while the error is retriable and definite, so nothing was written.

        So it may where the node has not heard of the topic yet.
        """
        async with asyncio.timeout(WAIT_S):
            while True:
                (result,) = await peer.publish(topic_id, batch(*values), partition=partition)
                if not (result.error.retriable and result.error.definite):
                    assert not result.HasField("error"), result
                    return result
                await asyncio.sleep(0.02)
