"""Gossip over real UDP on loopback: joins, failures, leaves, and foreign datagrams."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest
import uvloop

from tidelog_broker.cluster.gossip import Gossip
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.membership.datagram_auth import DatagramAuth
from tidelog_broker.core.membership.failure_detection import Refusal
from tidelog_broker.core.membership.gossip_messages import Ack, Datagram, DatagramWriter, Ping, decode
from tidelog_broker.core.membership.member_states import Change, Event, IdentityConflict, MembershipChange
from tidelog_broker.core.membership.members import Address, Member, MemberState

HERE = "127.0.0.1"
ANYWHERE = Address(HERE, 0)
CLUSTER = b"c" * 16
SECRETS = ClusterSecrets(b"a secret of the cluster")


def member(index: int, boot: int = 1) -> Member:
    return Member(f"n{index}", boot << 24 | 5, f"host{index}", 7400, Address("", 0), zone=f"z{index}")


class Watched:
    """A running node's gossip, with its events to wait for."""

    def __init__(
        self, me: Member, seeds: list[Address], secrets: ClusterSecrets = SECRETS, cluster_id: bytes = CLUSTER
    ) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()
        self.gossip = Gossip(
            me, cluster_id=cluster_id, secrets=secrets, listen=ANYWHERE, seeds=seeds, on_event=self._on_event
        )

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not done():
                await self._changed.wait()
                self._changed.clear()

    async def sees(self, *alive: str) -> None:
        await self.until(lambda: {one.node_id for one in self.gossip.members.live()} == set(alive))

    def changes(self, node_id: str) -> list[Change]:
        return [
            event.change
            for event in self.events
            if isinstance(event, MembershipChange) and event.member.node_id == node_id
        ]


class Nodes:
    """Starts nodes and stops the remaining ones."""

    def __init__(self) -> None:
        self._all: list[Watched] = []

    async def start(
        self, me: Member, *seeds: Address, secrets: ClusterSecrets = SECRETS, cluster_id: bytes = CLUSTER
    ) -> Watched:
        node = Watched(me, list(seeds), secrets, cluster_id)
        await node.gossip.start()
        self._all.append(node)
        return node

    async def stop(self) -> None:
        for node in self._all:
            await node.gossip.stop(leave=False)


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    nodes = Nodes()
    yield nodes
    await nodes.stop()


class Stranger(asyncio.DatagramProtocol):
    """A socket that may send anything to a node, and knows when the node has read it all.

    Args:
        node: the node to talk to.
        me: name of the member; uses the cluster's secret unless the test passes another one.
    """

    def __init__(self, node: Watched, me: Member) -> None:
        self.node = node
        self.me = me
        self.counter = 0
        self.heard: asyncio.Queue[Datagram] = asyncio.Queue()

    async def open(self) -> Stranger:
        loop = asyncio.get_running_loop()
        self.transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=ANYWHERE)
        self.me = replace(self.me, gossip=Address(*self.transport.get_extra_info("sockname")))
        return self

    def datagram_received(self, data: bytes, addr: object) -> None:
        payload = DatagramAuth(SECRETS).verify(data)
        assert payload is not None
        self.heard.put_nowait(decode(payload))

    def payload(self, *members: Member, cluster_id: bytes = CLUSTER) -> bytes:
        self.counter += 1
        writer = DatagramWriter(
            cluster_id=cluster_id,
            sender=self.me.node_id,
            incarnation=self.me.incarnation,
            counter=self.counter,
            digest=0,
            body=Ping(self.counter),
        )
        for one in members:
            writer.add(one)
        return writer.finish()

    def send(self, datagram: bytes) -> None:
        self.transport.sendto(datagram, self.node.gossip.address)

    async def answered(self) -> None:
        """Ping and wait for the answer: all that was sent before has then been read. Loopback keeps the order."""
        self.send(DatagramAuth(SECRETS).sign(self.payload()))
        async with asyncio.timeout(20):
            while (await self.heard.get()).body != Ack(self.counter):
                pass


@pytest.fixture
async def stranger(nodes: Nodes) -> AsyncIterator[Stranger]:
    stranger = await Stranger(await nodes.start(member(0)), member(9)).open()
    yield stranger
    stranger.transport.close()


async def test_gossip_detects_joins_deaths_and_leaves(nodes: Nodes) -> None:
    first = await nodes.start(member(0))
    others = [await nodes.start(member(i), first.gossip.address) for i in (1, 2, 3)]
    for node in (first, *others):
        await node.sees("n0", "n1", "n2", "n3")
    record = first.gossip.members["n2"]
    assert (record.host, record.port, record.zone, record.incarnation) == ("host2", 7400, "z2", member(2).incarnation)
    assert record.gossip == others[1].gossip.address
    await others[1].gossip.stop(leave=False)
    for node in (first, others[0], others[2]):
        await node.sees("n0", "n1", "n3")
        assert node.changes("n2") == [Change.ALIVE, Change.SUSPECT, Change.DEAD]
    await others[0].gossip.stop()
    for node in (first, others[2]):
        await node.sees("n0", "n3")
        assert node.changes("n1")[-1] is Change.LEFT
    again = await nodes.start(member(2, boot=2), first.gossip.address)
    await again.sees("n0", "n2", "n3")
    await first.sees("n0", "n2", "n3")
    assert first.changes("n2")[-1] is Change.RESTARTED
    assert (first.gossip.forged, sum(first.gossip.refusals.values())) == (0, 0)


def test_gossip_runs_on_uvloop() -> None:
    async def meet_and_part() -> None:
        nodes = Nodes()
        first = await nodes.start(member(0))
        other = await nodes.start(member(1), first.gossip.address)
        await first.sees("n0", "n1")
        await other.sees("n0", "n1")
        await other.gossip.stop()
        await first.sees("n0")
        assert first.changes("n1") == [Change.ALIVE, Change.LEFT]
        await nodes.stop()

    uvloop.run(meet_and_part())


async def test_false_suspicion_is_refuted(nodes: Nodes) -> None:
    first = await nodes.start(member(0))
    other = await nodes.start(member(1), first.gossip.address)
    await first.sees("n0", "n1")
    first.gossip.suspect_now("n1")
    assert first.changes("n1") == [Change.ALIVE, Change.SUSPECT]
    await first.until(lambda: first.gossip.members["n1"].state is MemberState.ALIVE)
    assert first.gossip.members["n1"].refutation >= 1
    assert other.changes("n0") == [Change.ALIVE]


async def test_duplicate_node_id_is_a_conflict(nodes: Nodes) -> None:
    first = await nodes.start(member(0))
    older = await nodes.start(member(1), first.gossip.address)
    await first.sees("n0", "n1")
    newer = await nodes.start(member(1, boot=2), first.gossip.address)
    await older.until(lambda: any(isinstance(event, IdentityConflict) for event in older.events))
    assert older.events[-1] == IdentityConflict("n1", member(1).incarnation, member(1, boot=2).incarnation)
    await newer.sees("n0", "n1")
    assert not any(isinstance(event, IdentityConflict) for event in newer.events)
    assert first.gossip.members["n1"].gossip == newer.gossip.address


async def test_wrong_secret_is_ignored_without_an_answer(stranger: Stranger) -> None:
    gossip = stranger.node.gossip
    forged = DatagramAuth(ClusterSecrets(b"another secret, as long")).sign(stranger.payload(stranger.me))
    for _ in range(5):
        stranger.send(forged)
    await stranger.answered()
    assert gossip.forged == 5
    assert "n9" not in gossip.members
    assert stranger.heard.empty(), "the only answer was that to the good one"


async def test_garbage_datagrams_are_ignored(stranger: Stranger) -> None:
    gossip = stranger.node.gossip
    for datagram in (b"\x01", b"GET / HTTP/1.1\r\n\r\n", bytes(33), b"\x01" + bytes(1_199), bytes(60_000)):
        stranger.send(datagram)
    stranger.send(DatagramAuth(SECRETS).sign(b"signed nonsense"))
    await stranger.answered()
    assert (gossip.forged, gossip.refusals[Refusal.MALFORMED]) == (5, 1)
    assert list(gossip.members) == ["n0"]


async def test_replayed_datagram_is_processed_once(stranger: Stranger) -> None:
    gossip = stranger.node.gossip
    once = DatagramAuth(SECRETS).sign(stranger.payload(stranger.me))
    for _ in range(3):
        stranger.send(once)
    await stranger.answered()
    assert gossip.refusals[Refusal.REPLAYED] == 2
    assert gossip.members.alive("n9")


async def test_older_incarnation_is_refused(stranger: Stranger) -> None:
    gossip = stranger.node.gossip
    stranger.me = replace(stranger.me, incarnation=2 << 24)
    await stranger.answered()
    stranger.send(DatagramAuth(SECRETS).sign(stranger.payload(stranger.me)))
    await stranger.answered()
    newer, stranger.me = stranger.me, replace(stranger.me, incarnation=1 << 24)
    stranger.send(DatagramAuth(SECRETS).sign(stranger.payload(replace(stranger.me, node_id="n7"))))
    async with asyncio.timeout(20):
        while newer not in (heard := await stranger.heard.get()).members or heard.body is not None:
            pass
    assert gossip.refusals[Refusal.STALE] == 1
    assert "n7" not in gossip.members


async def test_datagrams_of_another_cluster_are_refused(nodes: Nodes, stranger: Stranger) -> None:
    gossip = stranger.node.gossip
    other = await nodes.start(member(5), gossip.address, cluster_id=b"d" * 16)
    stranger.send(DatagramAuth(SECRETS).sign(stranger.payload(stranger.me, cluster_id=b"d" * 16)))
    await stranger.answered()
    assert gossip.refusals[Refusal.FOREIGN_CLUSTER] >= 1
    assert not {"n5", "n9"} & set(gossip.members)
    assert list(other.gossip.members) == ["n5"]


async def test_refusals_are_logged_at_a_limited_rate(stranger: Stranger, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            stranger.send(b"nonsense")
        await stranger.answered()
    said = [record.getMessage() for record in caplog.records if "dropped a gossip datagram" in record.getMessage()]
    assert len(said) == 1
    assert "not signed with this cluster's secret" in said[0]


async def test_seed_names_are_resolved_and_unknown_ones_skipped(nodes: Nodes) -> None:
    first = await nodes.start(member(0))
    name = Address("localhost", first.gossip.address.port)
    other = await nodes.start(member(1), Address("no-such-host.invalid", 1), name)
    await other.sees("n0", "n1")


async def test_advertised_name_is_resolved(nodes: Nodes) -> None:
    node = await nodes.start(replace(member(0), gossip=Address("localhost", 4_000)))
    assert node.gossip.address == Address(HERE, 4_000)


async def test_start_failures_name_the_cause() -> None:
    with pytest.raises(ValueError, match="at least 16 bytes, got 5"):
        Watched(member(0), [], secrets=ClusterSecrets(b"short"))
    with pytest.raises(ValueError, match="cluster id"):
        await Watched(member(0), [], cluster_id=b"short").gossip.start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(ANYWHERE)
        gossip = Gossip(
            member(0),
            cluster_id=CLUSTER,
            secrets=SECRETS,
            listen=Address(*taken.getsockname()),
            on_event=lambda _: None,
        )
        with pytest.raises(OSError, match=r"cannot listen on .*:\d+ \(UDP\) for gossip: Address already in use"):
            await gossip.start()


async def test_stop_is_idempotent(nodes: Nodes) -> None:
    node = await nodes.start(member(0))
    await node.gossip.stop()
    await node.gossip.stop()
    node.gossip.suspect_now("n1")
    assert not node.gossip.members.alive("n0"), "it has left"
