"""Real nodes whose data directories are restored from an older copy."""

from __future__ import annotations

import asyncio
import contextlib
import shutil

import pytest
from tests.broker.founded import Founded

from tidelog_broker.base.bootstrap import load_bootstrap
from tidelog_broker.cluster import incarnation_registry
from tidelog_broker.node import cluster_membership
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import peers
from tidelog_broker.storage.io.errors import NodeDirError, OldCopyError
from tidelog_broker.storage.node.node_dir import open_node_dir, relabel
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto import broker_pb2 as pb

OLDER = "is an older copy of node"


@pytest.fixture
def no_withdrawal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for a withdrawal, in tests where no node withdraws its start."""
    monkeypatch.setattr(cluster_membership, "WITHDRAWAL_WAIT_S", 0.5)
    monkeypatch.setattr(cluster_membership, "WITHDRAWAL_WAIT_S_MIN", 0.5)


def copy(founded: Founded, name: str, to: str) -> None:
    """Copy the directory of a node, which may run and rename files meanwhile."""

    def copy_unless_renamed(source: str, target: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(source, target)

    shutil.copytree(founded.path / name, founded.path / to, copy_function=copy_unless_renamed)


def put_back(founded: Founded, name: str, copied: str) -> None:
    shutil.rmtree(founded.path / name)
    (founded.path / copied).rename(founded.path / name)


async def publish(founded: Founded, name: str, topic_id: bytes, count: int) -> int:
    """Publish records one by one; return how many were acknowledged."""
    peer = await founded.peer(name)
    for number in range(count):
        await founded.publish(peer, topic_id, b"%d" % number)
    return count


async def end_of(founded: Founded, topic_id: bytes) -> int:
    """Return the end of a topic's only partition, from its owner."""
    asked = pb.ListOffsets(entries=[pb.ListOffsetsEntry(topic_id=topic_id, latest=True)])
    peers = [await founded.peer(name) for name in founded.nodes]
    async with asyncio.timeout(60):
        while True:
            for peer in peers:
                result = (await peer.ask(list_offsets=asked)).envelope.list_offsets_reply.results[0]
                if not result.HasField("error"):
                    return result.offset
            await asyncio.sleep(0.1)


@pytest.mark.usefixtures("no_withdrawal")
async def test_stopped_copy_is_refused_by_a_node_that_met_the_later_start(founded: Founded) -> None:
    """The copy is as old as the last start of c, and only b has the records acknowledged since."""
    await founded.found()
    peer = await founded.peer("a")
    topic = await peer.create("kept", replication_factor=3)
    await founded.settled()
    await founded.stop("a")
    copy(founded, "a", "copy")
    await founded.start("a")
    await founded.settled()
    await founded.stop("c")
    count = await publish(founded, "b", topic.topic_id, 50)
    await founded.stop("a")
    await founded.stop("b")
    put_back(founded, "a", "copy")

    outcomes = await asyncio.gather(founded.start("a"), founded.start("c"), return_exceptions=True)
    assert OLDER in str(outcomes[0])
    assert isinstance(outcomes[1], Node)
    await founded.start("b")
    assert await end_of(founded, topic.topic_id) == count


@pytest.mark.usefixtures("no_withdrawal")
async def test_refusal_of_an_older_copy_is_durable(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    await founded.stop("a")
    copy(founded, "a", "copy")
    await founded.start("a")
    await founded.settled()
    await founded.stop("a")
    put_back(founded, "a", "copy")
    with pytest.raises(OldCopyError, match=OLDER):
        await founded.start("a")
    await founded.stop("b")
    await founded.stop("c")
    with pytest.raises(OldCopyError, match=OLDER):
        await founded.start("a")


@pytest.mark.usefixtures("no_withdrawal")
async def test_copy_of_a_running_node_is_refused(founded: Founded) -> None:
    """Its next start has a higher counter than any that the others know; its tick shows that it is older."""
    await founded.found()
    peer = await founded.peer("a")
    topic = await peer.create("kept", replication_factor=3)
    await founded.settled()
    await publish(founded, "a", topic.topic_id, 5)
    copy(founded, "a", "copy")
    tick = founded.nodes["a"].broker.incarnations.own.now.tick
    count = 5
    async with asyncio.timeout(30):
        while founded.nodes["a"].broker.incarnations.own.now.tick < tick + 2:
            count += await publish(founded, "a", topic.topic_id, 1)
            await asyncio.sleep(0.05)
    await founded.stop("c")
    count += await publish(founded, "a", topic.topic_id, 20)
    await founded.stop("b")
    await founded.stop("a")
    put_back(founded, "a", "copy")

    outcomes = await asyncio.gather(founded.start("a"), founded.start("c"), return_exceptions=True)
    assert OLDER in str(outcomes[0])
    await founded.start("b")
    assert await end_of(founded, topic.topic_id) == count


async def test_copy_started_beside_the_running_node_stops(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    copy(founded, "a", "copy")
    running = founded.nodes["a"]
    port, gossip_port = free_ports(2)
    elsewhere = {"bootstrap": founded.path / "cluster.json", "port": port, "gossip_port": gossip_port}
    with pytest.raises(OldCopyError, match=r"is running in another process|continued to write"):
        await founded.start_as("a", "copy", elsewhere)
    await founded.settled()
    assert running.lifecycle.health.state == "running"
    assert not running.lifecycle.stop_reason


async def test_restarted_node_is_linked_with_all_others(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    for name in ("a", "b", "a", "c"):
        await founded.stop(name)
        await founded.start(name)
        await founded.settled()
    for name in ("b", "c"):
        await founded.crash(name)
        await founded.start(name)
        await founded.settled()


async def test_lives_are_refused_from_clients(founded: Founded) -> None:
    await founded.found()
    peer = await founded.peer("a")
    assert (await peer.ask(incarnations=pb.Incarnations())).envelope.error.code == pb.FORBIDDEN


async def test_relabelled_copies_run_as_another_cluster(founded: Founded) -> None:
    """An operator inspects a copy: the nodes' own cluster continues, and neither reaches the other."""
    await founded.found()
    peer = await founded.peer("a")
    topic = await peer.create("kept", replication_factor=3)
    await founded.settled()
    count = await publish(founded, "a", topic.topic_id, 20)
    for name in "abc":
        await founded.stop(name)
    (founded.path / "apart").mkdir()
    apart = Founded(founded.path / "apart")
    other = load_bootstrap(apart.path / "cluster.json")
    for name in "abc":
        shutil.copytree(founded.path / name, apart.path / name)
        assert relabel(apart.path / name, other.cluster_id_bytes, other.records()) == name
    try:
        await founded.found()
        await apart.found()
        assert await end_of(apart, topic.topic_id) == count
        await publish(apart, "b", topic.topic_id, 5)
        assert await end_of(founded, topic.topic_id) == count
        assert {node.lifecycle.health.state for node in founded.nodes.values()} == {"running"}
    finally:
        await apart.close()


@pytest.mark.usefixtures("no_withdrawal")
async def test_copy_that_was_relabelled_may_have_been_refused_before(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    await founded.stop("a")
    copy(founded, "a", "copy")
    await founded.start("a")
    await founded.settled()
    await founded.stop("a")
    put_back(founded, "a", "copy")
    with pytest.raises(OldCopyError, match=OLDER):
        await founded.start("a")
    with pytest.raises(NodeDirError, match="already belongs to cluster"):
        relabel(founded.path / "a", founded.nodes["b"].broker.cluster_id, [])
    relabel(founded.path / "a", bytes(16), [])
    with contextlib.closing(open_node_dir(founded.path / "a", cluster_id=bytes(16))) as directory:
        assert directory.node_id == "a"


async def test_running_node_that_does_not_answer_in_time_outlives_a_copy_of_it(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as gossip has the node as alive: its machine may be slow, or cut off from the node that calls it."""
    monkeypatch.setattr(incarnation_registry, "TICK_S", 3600)  # the copy is as new as the node
    await founded.found()
    await founded.settled()
    copy(founded, "a", "copy")
    monkeypatch.setattr(peers, "IN_USE_TIMEOUT_S", 0)
    port, gossip_port = free_ports(2)
    elsewhere = {"bootstrap": founded.path / "cluster.json", "port": port, "gossip_port": gossip_port}
    async with founded.beside("a") as running:
        started = await founded.start_as("a", "copy", elsewhere)
        assert not started.broker.cluster.linked
    assert not running.lifecycle.stop_reason
    await founded.settled()


class Crashing:
    """Node a crashes as a copy of it starts: b finds that it runs, once it may answer; c finds that it does not."""

    def __init__(self, founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
        self._founded = founded
        self.may_refuse = asyncio.Event()
        node = founded.nodes["a"]
        self.directory = ("a", node.dir.directory_id)
        self._running = node.incarnation
        port, gossip_port = free_ports(2)
        self._elsewhere = {"bootstrap": founded.path / "cluster.json", "port": port, "gossip_port": gossip_port}
        self._copies_met = 0
        monkeypatch.setattr(founded.nodes["b"].broker.cluster, "is_running", self._is_running)

    async def _is_running(self, node_id: str, incarnation: int, *, timeout_s: float) -> bool:
        del node_id, incarnation, timeout_s
        self._copies_met += 1
        if self._copies_met > 1:
            return False
        await self.may_refuse.wait()
        return True

    async def start_copy(self) -> None:
        """Start the copy, and return when it has been refused."""
        with pytest.raises(OldCopyError, match="is running in another process"):
            await self._founded.start_as("a", "copy", self._elsewhere)

    async def is_noted(self) -> None:
        """Wait until c has noted the start of the copy."""

        def noted() -> bool:
            newest = self._founded.nodes["c"].broker.incarnations.newest(self.directory)
            return newest is not None and newest.incarnation != self._running

        await self._founded.until(noted, "c never met the copy")


async def test_node_that_crashed_as_a_copy_of_it_started_runs_again(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    await founded.found()
    peer = await founded.peer("b")
    topic = await peer.create("kept", replication_factor=3)
    await founded.settled()
    count = await publish(founded, "b", topic.topic_id, 5)
    copy(founded, "a", "copy")
    crashing = Crashing(founded, monkeypatch)
    await founded.crash("a")
    copying = asyncio.create_task(crashing.start_copy())
    await crashing.is_noted()
    crashing.may_refuse.set()
    await copying
    await founded.start("a")
    await founded.settled()
    assert await end_of(founded, topic.topic_id) == count
    with pytest.raises(OldCopyError, match=OLDER):
        await founded.start("a", data="copy")


async def test_node_that_crashed_waits_for_the_end_of_the_copy_that_is_starting(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started again before the copy is refused."""
    await founded.found()
    await founded.settled()
    copy(founded, "a", "copy")
    crashing = Crashing(founded, monkeypatch)
    await founded.crash("a")
    copying = asyncio.create_task(crashing.start_copy())
    await crashing.is_noted()
    starting = asyncio.create_task(founded.start("a"))
    await asyncio.sleep(0.5)
    assert not starting.done()
    crashing.may_refuse.set()
    await copying
    await starting
    await founded.settled()
