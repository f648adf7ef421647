from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog.cluster import routing as module
from tidelog.cluster.connection import Connection
from tidelog.cluster.metadata_refresh import HOLD_S
from tidelog.cluster.routing import Router
from tidelog.errors import (
    ConnectionLostError,
    NotOwnerError,
    OverloadedError,
    QuorumLostError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.model import PartitionRoute
from tidelog_proto import broker_pb2 as pb

STATUS = pb.Envelope(cluster_status=pb.ClusterStatus())


async def test_owners_are_found_and_cached(node: FakeNode, router: Router) -> None:
    assert router.connection_now("t", 0) is None
    connection = await router.connection("t", 0)
    assert router.connection_now("t", 0) is connection
    await router.connection("t", 0)
    assert node.requests.count("metadata") == 1


async def test_unknown_topics_and_partitions_are_refused(node: FakeNode, router: Router) -> None:
    with pytest.raises(UnknownTopicError):
        await router.connection("nowhere", 0)
    with pytest.raises(UnknownPartitionError, match="partitions 0 to 0, got 1"):
        await router.connection("t", 1)
    node.add_topic("t", 2)
    assert not (await router.connection("t", 1)).closed, "metadata of a grown topic is refreshed"


async def test_unknown_owner_is_retriable(node: FakeNode, router: Router) -> None:
    node.owner_of = {0: "somebody"}
    with pytest.raises(NotOwnerError):
        await router.connection("t", 0)
    node.owner_of = {}
    node.epoch = 1
    await router.refresh("t")
    await router.connection("t", 0)


async def test_concurrent_refreshes_are_merged(node: FakeNode, router: Router) -> None:
    await asyncio.gather(*(router.topic("t") for _ in range(5)), router.refresh("t"))
    assert node.requests.count("metadata") == 1


async def test_watchers_are_called_until_they_stop(node: FakeNode, router: Router) -> None:
    heard: list[int] = []
    unwatch = router.watch("t", lambda: heard.append(node.epoch))
    await router.refresh("t")
    await router.refresh("t")
    node.epoch = 4
    await router.refresh("t")
    unwatch()
    unwatch()
    node.epoch = 5
    await router.refresh("t")
    assert heard == [0, 4]


async def test_metadata_change_ends_a_wait(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    waiting = asyncio.ensure_future(router.news("t", 3600.0))
    await asyncio.sleep(0)
    node.epoch = 1
    await router.refresh("t")
    await waiting
    await router.news("t", 0.001)


async def test_waiting_for_changes_uses_continuous_long_polls(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    waiting = asyncio.ensure_future(router.news("t", 3600.0))
    await node.received("metadata", 4)
    first, *later = node.metadata_asked
    assert not first.known, "for an unknown topic any answer is a change"
    for asked in later:
        assert asked.wait_ms == int(HOLD_S * 1000)
        assert [list(known.news_from) for known in asked.known] == [[1]]
    node.epoch = 1
    await waiting
    assert router.metadata.route("t", 0) == PartitionRoute(node.node_id, 1)


async def test_closed_client_does_not_wait_for_changes(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    await router.close()
    await router.news("t", 0.01)
    assert node.requests.count("metadata") == 1


async def test_not_owner_error_updates_the_epoch(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    error = NotOwnerError("moved")
    error.epoch = 3
    router.learn_from("t", error, 0)
    with pytest.raises(NotOwnerError, match="currently unknown"):
        await router.connection("t", 0)
    node.epoch = 3
    await router.refresh("t")
    await router.connection("t", 0)


async def test_repeatable_request_is_hedged_when_a_node_is_slow(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUEST_HEDGE_S", 0.02)
    async with running_fake_node() as other:
        router = Router([("127.0.0.1", node.port), ("127.0.0.1", other.port)], router.pool, request_timeout_s=5.0)
        await router.any_connection()
        for connection in node.connections:
            connection.transport.pause_reading()
        await router.call_any(lambda: STATUS, repeatable=True)
        assert other.requests.count("cluster_status") == 1
        await router.close()


async def test_errors_update_the_cache(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    router.learn_from("t", OverloadedError("full"))
    router.learn_from("t", ConnectionLostError("gone"))
    await node.received("metadata", 2)
    router.learn_from("t", UnknownTopicError("gone"))
    assert router.metadata.topic("t") is None


async def test_repeatable_request_is_retried_until_the_timeout(router: Router) -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionLostError("gone")
        return 7

    assert await router.retrying(flaky, repeatable=True) == 7
    assert len(tries) == 3

    async def busy() -> None:
        raise OverloadedError("full")

    with pytest.raises(OverloadedError):
        await router.retrying(busy, repeatable=True)


@pytest.mark.parametrize(("error", "tries"), [(ConnectionLostError("gone"), 1), (UnknownTopicError("none"), 1)])
async def test_request_with_unknown_outcome_is_not_repeated(router: Router, error: TidelogError, tries: int) -> None:
    made: list[int] = []

    async def once() -> None:
        made.append(1)
        raise error

    with pytest.raises(type(error)):
        await router.retrying(once, repeatable=False)
    assert len(made) == tries


async def test_definite_refusal_is_retried(router: Router) -> None:
    made: list[int] = []

    async def busy_once() -> None:
        made.append(1)
        if len(made) == 1:
            raise OverloadedError("full")

    await router.retrying(busy_once, repeatable=False)
    assert len(made) == 2


async def test_node_that_has_refused_a_non_repeatable_request_is_not_asked_again(
    node: FakeNode, router: Router
) -> None:
    async with running_fake_node() as gone, running_fake_node() as other:
        await gone.stop()
        addresses = [("127.0.0.1", each.port) for each in (gone, node, other)]
        router = Router(addresses, router.pool, request_timeout_s=0.5)
        asked: list[int] = []

        async def ask(connection: Connection) -> int:
            asked.append(connection.address[1])
            if connection.address[1] == node.port:
                raise QuorumLostError("__meta/0: 1 of 3 replicas are alive")
            return 7

        assert await router.at_any(ask, repeatable=False) == 7
        assert asked == [node.port, other.port]
        await router.close()


async def test_non_repeatable_request_moves_to_another_node_after_definite_refusal(
    node: FakeNode, router: Router
) -> None:
    """A node that is partitioned from the others, but not from the client, keeps reporting that it has no quorum."""
    async with running_fake_node() as other:
        router = Router([("127.0.0.1", node.port), ("127.0.0.1", other.port)], router.pool, request_timeout_s=0.5)
        asked: list[int] = []

        def asking(refusal: TidelogError) -> Callable[[Connection], Awaitable[int]]:
            async def ask(connection: Connection) -> int:
                asked.append(connection.address[1])
                if connection.address[1] == node.port:
                    raise refusal
                return 7

            return ask

        await router.any_connection()
        cut_off = QuorumLostError("__meta/0: 1 of 3 replicas are alive")
        assert await router.at_any(asking(cut_off), repeatable=False) == 7
        assert asked == [node.port, other.port]
        with pytest.raises(ConnectionLostError):
            await router.at_any(asking(ConnectionLostError("perhaps it was done")), repeatable=False)
        assert asked == [node.port, other.port, node.port]
        await other.stop()
        with pytest.raises(QuorumLostError):
            await router.at_any(asking(cut_off), repeatable=False)
        await router.close()
