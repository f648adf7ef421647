"""Abandonment of requests to a former owner. Tests with frozen nodes are in test_failover.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.clients.fake_node import FakeNode

from tidelog.cluster.connection import Address, Connection, connect
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.owner_changes import Expectation, OwnerChanges
from tidelog.errors import ConnectionLostError
from tidelog_proto import broker_pb2 as pb

ELSEWHERE = ("10.0.0.2", 2)
NOBODY = ("", 0)


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cluster.owner_changes.SILENCE_S", 0.04)
    monkeypatch.setattr("tidelog.cluster.owner_changes.GRACE_S", 0.04)


class World:
    """Metadata of one topic with one partition, and a record of events."""

    def __init__(self, owner: Address) -> None:
        self.metadata = Metadata()
        self.epoch = 0
        self.abandoned: list[ConnectionLostError] = []
        self.refreshed = asyncio.Event()
        self.gone = asyncio.Event()
        self.owner_changes = OwnerChanges(self.metadata, lambda _: self.refreshed.set())
        self.move(owner)

    def move(self, to: Address) -> None:
        self.epoch += 1
        owner = "" if to is NOBODY else f"node at {to}"
        partition = pb.PartitionInfo(partition=0, owner=owner, epoch=self.epoch)
        self.metadata.merge(
            pb.MetadataReply(
                nodes=[pb.NodeInfo(node_id=owner, host=to[0], port=to[1])] if owner else [],
                topics=[pb.TopicInfo(name="t", topic_id=b"t" * 16, partitions=[partition])],
            ),
            to,
        )
        self.owner_changes.changed("t")

    def abandon(self, error: ConnectionLostError) -> None:
        self.abandoned.append(error)
        self.gone.set()


@pytest.fixture
async def connection(node: FakeNode) -> AsyncIterator[Connection]:
    connection = await connect(("127.0.0.1", node.port), client_id="test", software="test", timeout_s=5.0)
    yield connection
    connection.close()
    await connection.lost


@pytest.fixture
async def world(connection: Connection) -> AsyncIterator[World]:
    world = World(connection.address)
    yield world
    world.owner_changes.close()


async def test_pending_connection_is_abandoned_for_the_new_owner(world: World, connection: Connection) -> None:
    world.owner_changes.expect("t", 0, connection.address, world.abandon)
    world.move(NOBODY)
    assert not world.abandoned, "no other node owns it yet"
    world.move(ELSEWHERE)
    assert len(world.abandoned) == 1
    world.move(connection.address)
    world.move(ELSEWHERE)
    assert len(world.abandoned) == 1, "abandoned at most once"


async def test_idle_subscription_is_abandoned_immediately(world: World, connection: Connection) -> None:
    world.owner_changes.expect("t", 0, connection, world.abandon, wait_s=None)
    world.owner_changes.changed("t")
    assert not world.abandoned
    world.move(ELSEWHERE)
    assert len(world.abandoned) == 1


async def test_forgotten_expectation_is_not_abandoned(world: World, connection: Connection) -> None:
    expectation = world.owner_changes.expect("t", 0, connection, world.abandon, wait_s=None)
    world.owner_changes.forget(expectation)
    world.owner_changes.forget(expectation)
    world.move(ELSEWHERE)
    assert not world.abandoned


async def test_silence_refreshes_metadata_and_a_move_abandons(
    world: World, connection: Connection, node: FakeNode
) -> None:
    (peer,) = node.connections
    peer.transport.pause_reading()
    asked = connection.request(pb.Envelope(cluster_status=pb.ClusterStatus()), timeout_s=60.0)
    world.owner_changes.expect("t", 0, connection, world.abandon)
    await world.refreshed.wait()
    assert not world.abandoned
    world.move(ELSEWHERE)
    assert len(world.abandoned) == 1
    asked.cancel()


async def test_responsive_node_gets_a_grace_period_after_a_move(world: World, connection: Connection) -> None:
    world.owner_changes.expect("t", 0, connection, world.abandon)
    world.move(ELSEWHERE)
    assert not world.abandoned
    assert not world.refreshed.is_set()
    await world.gone.wait()


async def test_move_back_ends_the_grace_period(world: World, connection: Connection) -> None:
    expectation = world.owner_changes.expect("t", 0, connection, world.abandon)
    world.move(ELSEWHERE)
    assert expectation.moved_at is not None
    world.move(connection.address)
    assert expectation.moved_at is None


async def test_long_poll_is_not_silence(world: World, connection: Connection, node: FakeNode) -> None:
    (peer,) = node.connections
    peer.transport.pause_reading()
    status = pb.Envelope(cluster_status=pb.ClusterStatus())
    asked = connection.request(status, timeout_s=60.0, wait_s=30.0)
    world.owner_changes.expect("t", 0, connection, world.abandon, wait_s=30.0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.refreshed.wait(), 0.2)
    assert connection.silent_s == 0.0
    asked.cancel()


async def test_abandon_callback_may_forget_another_expectation(world: World, connection: Connection) -> None:
    expected: list[Expectation] = []
    gone: list[int] = []

    def forget(other: int, _: ConnectionLostError) -> None:
        gone.append(other)
        world.owner_changes.forget(expected[other])

    expected += [
        world.owner_changes.expect("t", 0, connection, partial(forget, other), wait_s=None) for other in (1, 0)
    ]
    world.move(ELSEWHERE)
    assert len(gone) == 1
