from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.clients.fake_node import FakeNode

from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.routing import Router
from tidelog.errors import UnknownPartitionError
from tidelog.model import Committed
from tidelog.requests import committed_positions, fetch_and_commit
from tidelog.subscriptions.consumer_options import (
    PREFETCH_BYTES_DEFAULT,
    ConsumerOptions,
    Partitions,
    Start,
    TopicOptions,
    resolve_start,
)


@pytest.fixture
async def router(node: FakeNode) -> AsyncIterator[Router]:
    for partition in range(4):
        node.partition("wide", partition).log_start = partition
        node.partition("wide", partition).end_offset = 10 * partition + 5
    pool = ConnectionPool(Identity("test", "test", 5.0))
    router = Router([("127.0.0.1", node.port)], pool, request_timeout_s=0.5)
    yield router
    await router.close()


def options(start: Start, *, group: str | None = None, partitions: Partitions = None) -> TopicOptions:
    return ConsumerOptions.of(["wide"], group=group, start=start, partitions=partitions).of_topic("wide")


def test_defaults_apply_and_repeated_partitions_are_merged() -> None:
    assert ConsumerOptions.of(["t"]).prefetch.bytes == PREFETCH_BYTES_DEFAULT
    assert options("latest", partitions=[2, 1, 2]).partitions == (2, 1)
    assert options({3: 1}).partitions == (3,)
    assert options({3: 1}, partitions="all").partitions is None


@pytest.mark.parametrize(
    ("start", "partitions", "expected"),
    [
        ("earliest", None, {0: 0, 1: 1, 2: 2, 3: 3}),
        ("latest", [1, 3], {1: 15, 3: 35}),
        (7, [0, 2], {0: 7, 2: 7}),
        ({1: 9}, None, {1: 9}),
        ({1: 9}, [1, 2], {1: 9, 2: 2}),
    ],
)
async def test_start_without_a_group_is_resolved(
    router: Router, start: Start, partitions: list[int] | None, expected: dict[int, int]
) -> None:
    assert (await resolve_start(router, "wide", options(start, partitions=partitions))).positions == expected


async def test_group_starts_at_committed_positions_unless_offsets_are_given(router: Router) -> None:
    await fetch_and_commit.commit(router, "g", "wide", {0: 4, 1: 6}, reset=False, note="")
    asked = options("latest", group="g")
    beginning = await resolve_start(router, "wide", asked)
    assert beginning.positions == {0: 4, 1: 6, 2: 25, 3: 35}
    assert beginning.committed == {0, 1}
    asked = options({0: 1}, group="g", partitions="all")
    assert (await resolve_start(router, "wide", asked)).positions == {0: 1, 1: 6, 2: 2, 3: 3}
    asked = options({0: 1}, group="g", partitions=[0, 1, 2])
    assert (await resolve_start(router, "wide", asked)).positions == {0: 1, 1: 6, 2: 2}


async def test_unknown_partitions_are_refused(router: Router) -> None:
    with pytest.raises(UnknownPartitionError, match=r"got \[8, 9\]"):
        await resolve_start(router, "wide", options("latest", partitions=[0, 8, 9]))


async def test_start_positions_belong_to_one_topic_id(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is recreated between two requests of the resolution."""
    committed, ids = committed_positions.committed, [node.topics["wide"].topic_id, b"anew".ljust(16)]

    async def made_again(*asked: Any) -> list[Committed]:
        held = await committed(*asked)
        if node.topics["wide"].topic_id == ids[0]:
            node.add_topic("wide", 4, topic_id=ids[1])
            await router.topic_now("wide")
        return held

    monkeypatch.setattr(committed_positions, "committed", made_again)
    await fetch_and_commit.commit(router, "g", "wide", {0: 4}, reset=False, note="")
    beginning = await resolve_start(router, "wide", options("earliest", group="g"))
    assert beginning == (ids[1], dict.fromkeys(range(4), 0), None, frozenset())
