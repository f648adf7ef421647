from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode, running_fake_node

from tidelog.cluster import routing
from tidelog.cluster.routing import Router
from tidelog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    UnknownTopicError,
)
from tidelog.model import TopicPartition
from tidelog.requests import committed_positions, fetch_and_commit
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import stamp_owner
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.wire.frames import Frame


def stored(base_offset: int, *values: bytes, control: bool = False) -> bytes:
    data = bytearray(encode_batch(columns_of(values), now_us=1, control=control).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=1, epoch=0, owner_incarnation=1, previous_digest=0)
    return bytes(data)


def test_batches_are_parsed_trimmed_and_without_control_batches() -> None:
    attachment = b"".join([stored(0, b"a"), stored(1, b"b", b"c"), stored(3, b"x", control=True), stored(4, b"d")])
    where = TopicPartition("t", 3)
    batches = fetch_and_commit.parse_batches(memoryview(attachment), where, 2)
    assert [(batch.base_offset, batch.values()) for batch in batches] == [(2, [b"c"]), (4, [b"d"])]
    with pytest.raises(CorruptBatchError, match="topic 't', partition 3, offset 4: "):
        fetch_and_commit.parse_batches(memoryview(attachment[:-1]), where, 0)


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"max_bytes": 0}, {"max_bytes": 1 << 30}, {"wait_ms": 10**7}])
async def test_fetch_with_argument_out_of_range_is_refused(
    node: FakeNode, router: Router, wrong: dict[str, int]
) -> None:
    arguments: dict[str, Any] = {"offset": 0, "max_bytes": 100, "min_bytes": 0, "wait_ms": 0, **wrong}
    with pytest.raises(InvalidRequestError, match="must be"):
        await fetch_and_commit.fetch(router, "t", 0, **arguments)
    assert node.requests == []


@pytest.mark.parametrize("bound", ["since_us", "until_us"])
async def test_fetch_with_a_time_in_another_unit_is_refused(node: FakeNode, router: Router, bound: str) -> None:
    arguments: dict[str, Any] = {bound: 1_795_964_400_000}
    with pytest.raises(InvalidRequestError, match=f"{bound}: .* in milliseconds.*pass 1795964400000000"):
        await fetch_and_commit.fetch(router, "t", 0, 0, **arguments)
    assert node.requests == []


async def test_empty_commit_sends_nothing(node: FakeNode, router: Router) -> None:
    assert await fetch_and_commit.commit(router, "g", "t", {}, reset=False, note="") == {}
    assert node.requests == []


@pytest.mark.parametrize("reset", [False, True])
async def test_slow_commit_is_sent_to_another_node_and_a_reset_is_not(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch, *, reset: bool
) -> None:
    """A late copy of a reset could undo a newer one."""
    asked: list[FakeNode] = []
    answer = FakeConnection.on_commit

    def answer_late(self: FakeConnection, frame: Frame) -> None:
        asked.append(self.node)
        asyncio.get_running_loop().call_later(0.3, answer, self, frame)

    monkeypatch.setattr(FakeConnection, "on_commit", answer_late)
    monkeypatch.setattr(routing, "REQUEST_HEDGE_S", 0.05)
    async with running_fake_node() as other:
        other.add_topic("t")
        both = routing.Router([("127.0.0.1", each.port) for each in (node, other)], router.pool, request_timeout_s=10)
        await both.topic("t")
        await fetch_and_commit.commit(both, "g", "t", {0: 0}, reset=reset, note="")
        assert asked == ([node] if reset else [node, other])
        await both.close()


async def test_commit_for_a_recreated_topic(node: FakeNode, router: Router) -> None:
    await router.topic("t")
    node.add_topic("t", topic_id=b"anew".ljust(16))
    await fetch_and_commit.commit(router, "g", "t", {0: 0}, reset=False, note="")
    await router.refresh("t")
    (held,) = await committed_positions.committed(router, "g", "t")
    assert held.next_offset == 0
    with pytest.raises(UnknownTopicError):
        await fetch_and_commit.commit(router, "g", "t", {0: 2}, reset=False, note="", topic_id=b"t".ljust(16, b"\0"))


async def test_fetch_by_topic_id_is_not_answered_by_a_recreated_topic(node: FakeNode, router: Router) -> None:
    meant = (await router.topic("t")).topic_id
    assert (await fetch_and_commit.fetch(router, "t", 0, 0, topic_id=meant)).next_offset == 0
    node.add_topic("t", topic_id=b"anew".ljust(16))
    await router.refresh("t")
    with pytest.raises(UnknownTopicError, match="was deleted and created again"):
        await fetch_and_commit.fetch(router, "t", 0, 0, topic_id=meant)
    assert (await fetch_and_commit.fetch(router, "t", 0, 0)).next_offset == 0
    assert (await fetch_and_commit.fetch(router, "t", 0, 0, topic_id=b"anew".ljust(16))).next_offset == 0


async def test_positions_of_an_unknown_topic(router: Router) -> None:
    with pytest.raises(UnknownTopicError):
        await committed_positions.committed(router, "g", "nowhere")
