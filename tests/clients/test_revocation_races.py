"""A revocation that waits for an earlier callback of the application while the member's session expires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.clients.fake_node import FakeNode

from tidelog import Client, Group, TopicPartition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import OFFSETS_TOPIC

SESSION_S = 1.0
FIRST, SECOND = TopicPartition("u", 1), TopicPartition("u", 0)
"""The partitions in the order in which they are revoked."""


class Revoking:
    """A coordinator that assigns two partitions, revokes one after the other, and is silent afterwards.

    Attributes:
        revision: of the newest answer; 3 when both partitions are revoked.
    """

    def __init__(self, topic_id: bytes) -> None:
        self.revision = 0
        self._topic_id = topic_id

    def answer(self, asked: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply | None:
        if asked.leave:
            return pb.GroupHeartbeatReply(unchanged=True)
        if asked.HasField("join"):
            return self._next((0, 1)) if self.revision == 0 else None
        if self.revision == 1 and [sorted(each.partitions) for each in asked.held] != [[0, 1]]:
            return pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
        if self.revision == 3:
            return None
        return self._next((0,) if self.revision == 1 else ())

    def _next(self, partitions: tuple[int, ...]) -> pb.GroupHeartbeatReply:
        self.revision += 1
        reply = pb.GroupHeartbeatReply(revision=self.revision, generation=1)
        if partitions:
            reply.assigned.add(topic_id=self._topic_id, topic="u", partitions=partitions)
        return reply


async def events_with(
    node: FakeNode, client: Client, outlast: Callable[[], Awaitable[None]]
) -> list[tuple[str, frozenset[TopicPartition]]]:
    """Return the callbacks of a member; the first `on_revoked` waits for both revocations, and then for `outlast`."""
    node.add_topic(OFFSETS_TOPIC)
    coordinator = Revoking(node.add_topic("u", partitions=2))
    node.coordinate = coordinator.answer
    events: list[tuple[str, frozenset[TopicPartition]]] = []

    async def revoked(partitions: frozenset[TopicPartition]) -> None:
        events.append(("revoked", partitions))
        async with asyncio.timeout(10):
            while coordinator.revision < 3:  # noqa: ASYNC110 - the coordinator has no event
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # the second revocation waits for this callback
        await outlast()

    group = Group(
        "g",
        session_timeout_s=SESSION_S,
        on_assigned=lambda partitions: events.append(("assigned", partitions)),
        on_revoked=revoked,
        on_lost=lambda partitions: events.append(("lost", partitions)),
    )
    async with client.consumer("u", group=group) as consumer:
        assert await consumer.poll(1, timeout_s=0.1) == []
        async with asyncio.timeout(10):
            while len(events) < 3:  # noqa: ASYNC110 - expiry depends on a clock
                await asyncio.sleep(0.02)
    return events


async def block_the_loop() -> None:
    time.sleep(SESSION_S)  # noqa: ASYNC251 - the expiry of the session is noticed late


@pytest.mark.parametrize("outlast", [block_the_loop, asyncio.Event().wait], ids=["the loop is blocked", "it waits"])
async def test_a_revocation_that_waited_beyond_the_session_is_a_loss(
    node: FakeNode, client: Client, outlast: Callable[[], Awaitable[None]]
) -> None:
    assert await events_with(node, client, outlast) == [
        ("assigned", frozenset([FIRST, SECOND])),
        ("revoked", frozenset([FIRST])),
        ("lost", frozenset([SECOND])),
    ]
