"""How partitions are kept subscribed. What becomes of records meanwhile: test_consumer.py and test_failover.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tests.clients.fake_cluster import FakeCluster, running_cluster
from tests.clients.fake_node import FakeConnection

from tidelog import reading
from tidelog.consumer_options import ConsumerOptions
from tidelog.errors import UnknownTopicError
from tidelog.pool import ConnectionPool, Identity
from tidelog.routing import Router
from tidelog.subscription import Prefetched
from tidelog.subscription_keeper import Serving
from tidelog_proto import broker_pb2 as pb

OPTIONS = ConsumerOptions.of(
    group=None, start=0, partitions=None, on_out_of_range="error", prefetch_bytes=None, prefetch_records=None
)


WIDE = b"wide".ljust(16, b"\0")


class Noted:
    """A reader that notes what it is told."""

    def __init__(self) -> None:
        self.positions: dict[int, int] = {}
        self.items: list[Prefetched] = []
        self.errors: list[BaseException] = []
        self.failed = asyncio.Event()
        self.grown = asyncio.Event()

    def prefetched(self, items: list[Prefetched]) -> None:
        self.items += items

    def added(self, positions: dict[int, int]) -> None:
        self.positions |= positions
        if len(self.positions) > 3:
            self.grown.set()

    def broken(self, error: BaseException) -> None:
        self.errors.append(error)
        self.failed.set()


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
async def serving(router: Router, reader: Noted) -> AsyncIterator[Serving]:
    serving = Serving(router, "wide", OPTIONS, reader)
    yield serving
    await serving.close()


async def test_each_owner_gets_one_subscription(cluster: FakeCluster, router: Router, serving: Serving) -> None:
    cluster.move("wide", cluster.nodes[0], partition=1)
    await router.topic("wide")
    serving.begin(dict.fromkeys(range(3), 0), WIDE)
    await asyncio.gather(cluster.nodes[0].received("subscribe"), cluster.nodes[2].received("subscribe"))
    assert cluster.asked("subscribe") == 2
    assert serving.partitions == [0, 1, 2]


async def test_a_partition_that_moves_takes_only_itself_along(
    cluster: FakeCluster, router: Router, serving: Serving
) -> None:
    cluster.move("wide", cluster.nodes[0], partition=1)
    await router.topic("wide")
    serving.begin(dict.fromkeys(range(3), 0), WIDE)
    await asyncio.gather(cluster.nodes[0].received("subscribe"), cluster.nodes[2].received("subscribe"))
    cluster.move("wide", cluster.nodes[1], partition=1)
    await cluster.nodes[1].received("subscribe")
    assert [node.requests.count("subscribe") for node in cluster.nodes] == [1, 1, 1]


async def test_an_owner_who_refuses_is_not_asked_in_a_spin(
    cluster: FakeCluster, router: Router, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: FakeConnection, frame: object) -> None:
        connection.fail(frame, pb.EPOCH_CHANGING)  # type: ignore[arg-type] # the frame as it came

    monkeypatch.setattr(FakeConnection, "on_subscribe", refuse)
    await router.topic("wide")
    serving.begin({0: 0}, WIDE)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(cluster.nodes[0].received("subscribe", 100), 0.5)
    assert cluster.nodes[0].requests.count("subscribe") > 1


async def test_a_quiet_connection_is_asked_something(
    cluster: FakeCluster, router: Router, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.subscription_keeper.PROBE_S", 0.02)
    await router.topic("wide")
    serving.begin({2: 0}, WIDE)
    await cluster.nodes[2].received("metadata", 3)


@pytest.mark.parametrize(("group", "offset"), [(None, 2), ("g", 10)])
async def test_partitions_are_added_when_they_are_heard_of(
    cluster: FakeCluster, router: Router, reader: Noted, group: str | None, offset: int
) -> None:
    """At their beginning, or where the group has come to by another client."""
    serving = Serving(router, "wide", replace(OPTIONS, group=group), reader)
    await router.topic("wide")
    serving.begin(dict.fromkeys(range(3), 0), WIDE)
    cluster.add_topic("wide", 4)
    added = cluster.nodes[0].partition("wide", 3)
    added.log_start, added.end_offset = 2, 20
    await reading.commit(router, "g", "wide", {3: 10}, reset=False, note="")
    await router.refresh("wide")
    await reader.grown.wait()
    assert reader.positions == dict.fromkeys(range(3), 0) | {3: offset}
    await cluster.nodes[0].received("subscribe", 2)
    assert not reader.errors
    await serving.close()


async def test_a_topic_that_is_made_again_is_not_read_on(
    cluster: FakeCluster, router: Router, serving: Serving, reader: Noted
) -> None:
    await router.topic("wide")
    serving.begin(dict.fromkeys(range(3), 0), WIDE)
    await asyncio.gather(*(node.received("subscribe") for node in cluster.nodes))
    cluster.make_again("wide", 3)
    await router.refresh("wide")
    await reader.failed.wait()
    assert isinstance(reader.errors[0], UnknownTopicError)
    assert cluster.asked("subscribe") == 3


async def test_what_cannot_be_mended_reaches_the_reader(
    cluster: FakeCluster, router: Router, serving: Serving, reader: Noted
) -> None:
    await router.topic("wide")
    serving.begin({0: 7}, WIDE)
    await reader.failed.wait()
    assert "gone" in str(reader.errors[0])
