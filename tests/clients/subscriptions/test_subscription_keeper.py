"""How partitions are kept subscribed. Delivery of records is tested in test_consumer.py and test_failover.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.clients.fake_cluster import ClusterConnection, FakeCluster, running_cluster
from tests.clients.fake_node import FakeConnection, FakeSubscription
from tests.clients.sharing import until

from tidelog import Client
from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.owner_changes import OwnerChanges
from tidelog.cluster.routing import Router
from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.subscription import Prefetched
from tidelog.subscriptions.subscription_keeper import SUBSCRIPTIONS_PER_NODE, SubscriptionKeeper
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.wire.frames import Frame

WIDE = b"wide".ljust(16, b"\0")


def wide(positions: dict[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition("wide", number): offset for number, offset in positions.items()}


class Noted:
    """A reader that records events."""

    def __init__(self) -> None:
        self.items: list[Prefetched] = []
        self.errors: list[BaseException] = []
        self.failed_in: dict[TopicPartition, TidelogError] = {}
        self.told = asyncio.Event()

    def prefetched(self, items: list[Prefetched]) -> None:
        self.items += items

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        del where, batch
        return False

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        self.failed_in[where] = error
        self.told.set()

    def topic_deleted(self, topic: str, error: TidelogError) -> None:
        self.broken(error)

    def broken(self, error: BaseException) -> None:
        self.errors.append(error)
        self.told.set()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def router(cluster: FakeCluster) -> AsyncIterator[Router]:
    addresses = [("127.0.0.1", node.port) for node in cluster.nodes]
    router = Router(addresses, ConnectionPool(Identity("test", "test", 5.0)), request_timeout_s=20.0)
    yield router
    await router.close()


@pytest.fixture
def reader() -> Noted:
    return Noted()


@pytest.fixture
async def keeper(router: Router, reader: Noted) -> AsyncIterator[SubscriptionKeeper]:
    keeper = SubscriptionKeeper(router, Prefetch(Credit(1000, 1 << 20)), reader, on_out_of_range="error")
    keeper.topic_ids["wide"] = WIDE
    yield keeper
    await keeper.close()


async def test_each_owner_gets_one_subscription(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper
) -> None:
    cluster.move("wide", cluster.nodes[0], partition=1)
    await router.topic("wide")
    keeper.add(wide(dict.fromkeys(range(3), 0)))
    await asyncio.gather(cluster.nodes[0].received("subscribe"), cluster.nodes[2].received("subscribe"))
    assert cluster.asked("subscribe") == 2
    assert sorted(keeper.partitions) == [("wide", 0), ("wide", 1), ("wide", 2)]


async def test_moved_partition_does_not_affect_others(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper
) -> None:
    cluster.move("wide", cluster.nodes[0], partition=1)
    await router.topic("wide")
    keeper.add(wide(dict.fromkeys(range(3), 0)))
    await asyncio.gather(cluster.nodes[0].received("subscribe"), cluster.nodes[2].received("subscribe"))
    cluster.move("wide", cluster.nodes[1], partition=1)
    await cluster.nodes[1].received("subscribe")
    assert [node.requests.count("subscribe") for node in cluster.nodes] == [1, 1, 1]


async def test_partition_that_moves_while_its_subscription_is_answered_is_subscribed_at_the_new_owner(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = cluster.nodes[0], cluster.nodes[1]
    cluster.move("wide", old, partition=0)
    await router.topic("wide")
    call = Router.call_reader
    calls = 0

    async def moving(self: Router, *args: Any, **more: Any) -> Frame:
        nonlocal calls
        calls += 1
        answer = await call(self, *args, **more)
        if calls == 1:
            old.frozen = True  # The old owner does not tell the client.
            cluster.move("wide", new, partition=0)
            await self.refresh("wide")
        return answer

    monkeypatch.setattr(Router, "call_reader", moving)
    monkeypatch.setattr(OwnerChanges, "changed", lambda *_: None)  # Later metadata would show the move, too.
    keeper.add(wide({0: 0}))
    async with asyncio.timeout(5):
        await new.received("subscribe")
    assert cluster.asked("subscribe") == 2


async def test_refusing_owner_is_not_asked_in_a_tight_loop(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: FakeConnection, frame: object) -> None:
        connection.fail(frame, pb.EPOCH_CHANGING)  # type: ignore[arg-type] # the frame as it came

    monkeypatch.setattr(FakeConnection, "on_subscribe", refuse)
    await router.topic("wide")
    keeper.add(wide({0: 0}))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cluster.nodes[0].received("subscribe", 100), 0.5)
    assert cluster.nodes[0].requests.count("subscribe") > 1


async def test_quiet_connection_is_probed(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.subscriptions.liveness_probe.PROBE_S", 0.02)
    await router.topic("wide")
    keeper.add(wide({2: 0}))
    await cluster.nodes[2].received("metadata", 3)


async def test_recreated_topic_is_not_read(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, reader: Noted
) -> None:
    await router.topic("wide")
    keeper.topic_ids["wide"] = b"another".ljust(16)
    keeper.add(wide(dict.fromkeys(range(3), 0)))
    await reader.told.wait()
    assert isinstance(reader.errors[0], UnknownTopicError)
    assert cluster.asked("subscribe") == 0


async def test_resubscription_names_the_epoch_of_the_last_record(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, reader: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int | None]] = []
    on_subscribe = FakeConnection.on_subscribe

    def note(connection: FakeConnection, frame: Frame) -> None:
        (entry,) = frame.envelope.subscribe.entries
        asked.append((entry.offset, entry.record_epoch if entry.HasField("record_epoch") else None))
        on_subscribe(connection, frame)

    monkeypatch.setattr(ClusterConnection, "on_subscribe", note)
    where = TopicPartition("wide", 0)
    async with Client(cluster.bootstrap) as client, client.producer("wide") as producer:
        for _ in range(3):
            await producer.send(b"x", partition=0)
    await router.topic("wide")
    router.read_epochs.note_committed(WIDE, 0, offset=1, epoch=0)
    keeper.add(wide({0: 1}))
    await until(lambda: len(reader.items) == 2)
    keeper.pause(where)
    keeper.resume(where)
    await until(lambda: len(asked) == 2)
    keeper.seek(where, 2)
    await until(lambda: len(asked) == 3)
    assert asked == [(1, 0), (3, 0), (2, None)]
    assert router.read_epochs.at(WIDE, 0, 3) == 0
    assert router.known_ends.newest(WIDE, 0) == 3


async def test_deleted_offset_stops_one_partition_until_a_seek(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper, reader: Noted
) -> None:
    await router.topic("wide")
    keeper.add(wide({0: 7, 1: 0}))
    await reader.told.wait()
    assert "gone" in str(reader.failed_in[TopicPartition("wide", 0)])
    assert not reader.errors
    await cluster.nodes[1].received("subscribe")
    keeper.metadata_changed()
    await asyncio.sleep(0.05)
    assert cluster.nodes[0].requests.count("subscribe") == 1, "it is not requested again"
    keeper.seek(TopicPartition("wide", 0), 0)
    await cluster.nodes[0].received("subscribe", 2)


async def test_paused_partition_is_unsubscribed_until_resumed(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper
) -> None:
    await router.topic("wide")
    keeper.add(wide({0: 0, 1: 0}))
    await asyncio.gather(cluster.nodes[0].received("subscribe"), cluster.nodes[1].received("subscribe"))
    keeper.pause(TopicPartition("wide", 0))
    await cluster.nodes[0].received("unsubscribe")
    keeper.metadata_changed()
    await asyncio.sleep(0.05)
    assert cluster.nodes[0].requests.count("subscribe") == 1
    keeper.resume(TopicPartition("wide", 0))
    await cluster.nodes[0].received("subscribe", 2)


async def test_many_small_subscriptions_are_merged(
    cluster: FakeCluster, router: Router, keeper: SubscriptionKeeper
) -> None:
    cluster.add_topic("many", 12)
    for partition in range(12):
        cluster.move("many", cluster.nodes[0], partition=partition)
    keeper.topic_ids["many"] = (await router.topic("many")).topic_id
    open_there: list[FakeSubscription] = []
    for count in range(1, 13):
        keeper.add({TopicPartition("many", count - 1): 0})
        followed: set[tuple[bytes, int]] = set()
        while len(followed) < count:
            await asyncio.sleep(0.01)
            open_there = [one for each in cluster.nodes[0].connections for one in each.subscriptions.values()]
            followed = {key for one in open_there for key in one.positions}
        assert len(open_there) <= SUBSCRIPTIONS_PER_NODE + 1
    asked = cluster.nodes[0].requests.count("subscribe")
    await asyncio.sleep(0.1)
    assert cluster.nodes[0].requests.count("subscribe") == asked, "no further change follows"
