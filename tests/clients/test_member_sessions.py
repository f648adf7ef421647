"""A member whose process is suspended for longer than its session: other members may read its partitions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.clients.consume.test_consumer import T0, numbered, publish
from tests.clients.fake_node import FakeNode

from tidelog import Client, Consumer, Group, TopicPartition
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import OFFSETS_TOPIC

SESSION_S = 1.0
RECORDS = 40


class Coordinator:
    """Assigns all partitions to the first member that joins, and is silent afterwards; it may revoke them before.

    Attributes:
        takes_away: whether it revokes them.
        takes_in: whether it assigns all partitions to later members, too.
    """

    def __init__(self, node: FakeNode) -> None:
        self.takes_away = False
        self.takes_in = False
        self._has_joined = False
        topic_id = node.topics["t"].topic_id
        self._all = [pb.TopicPartitions(topic_id=topic_id, topic="t", partitions=[0])]

    def answer(self, asked: pb.GroupHeartbeat) -> pb.GroupHeartbeatReply | None:
        if asked.leave:
            return pb.GroupHeartbeatReply(unchanged=True)
        if asked.HasField("join"):
            is_silent, self._has_joined = self._has_joined and not self.takes_in, True
            return None if is_silent else pb.GroupHeartbeatReply(revision=1, generation=1, assigned=self._all)
        if self.takes_away:
            if not asked.held:
                return pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
            self.takes_away = False
            return pb.GroupHeartbeatReply(revision=2, generation=2)
        return None


@pytest.fixture(autouse=True)
async def coordinator(node: FakeNode) -> Coordinator:
    node.add_topic(OFFSETS_TOPIC)
    await publish(node, *numbered(RECORDS), batch=RECORDS // 4)
    coordinator = Coordinator(node)
    node.coordinate = coordinator.answer
    return coordinator


class Callbacks:
    """The callbacks of a member, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, frozenset[TopicPartition]]] = []

    def group(self) -> Group:
        def note(what: str) -> Callable[[frozenset[TopicPartition]], None]:
            return lambda partitions: self.events.append((what, partitions))

        return Group(
            "g",
            commit="manual",
            session_timeout_s=SESSION_S,
            on_assigned=note("assigned"),
            on_revoked=note("revoked"),
            on_lost=note("lost"),
        )


async def with_all_arrived(consumer: Consumer) -> None:
    """Read the first record; the batches after it have arrived, or arrive immediately."""
    assert (await anext(consumer)).offset == 0
    await asyncio.sleep(0.1)
    assert consumer.has_arrivals


def be_stopped() -> None:
    """Block the event loop, like SIGSTOP."""
    time.sleep(SESSION_S)


async def test_nothing_is_delivered_after_session_expiry(client: Client) -> None:
    told = Callbacks()
    async with client.consumer("t", group=told.group()) as consumer:
        await with_all_arrived(consumer)
        be_stopped()
        assert not consumer.has_arrivals
        assert await consumer.poll(timeout_s=0.2) == []
        assert told.events[:2] == [("assigned", frozenset([T0])), ("lost", frozenset([T0]))]


async def test_awaited_batch_is_not_delivered_after_session_expiry(client: Client) -> None:
    told = Callbacks()
    async with client.consumer("t", group=told.group()) as consumer:
        batches = consumer.batches()
        await anext(batches)
        await asyncio.sleep(0.1)
        be_stopped()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await anext(batches)
        assert told.events == [("assigned", frozenset([T0])), ("lost", frozenset([T0]))]


async def test_close_after_session_expiry_calls_on_lost(client: Client) -> None:
    told = Callbacks()
    consumer = client.consumer("t", group=told.group())
    await with_all_arrived(consumer)
    be_stopped()
    await consumer.close()
    assert told.events == [("assigned", frozenset([T0])), ("lost", frozenset([T0]))]


async def test_revocation_becomes_loss_when_the_session_expires(coordinator: Coordinator, client: Client) -> None:
    coordinator.takes_away = True
    told = Callbacks()
    async with client.consumer("t", group=told.group()) as consumer:
        assert (await anext(consumer)).offset == 0
        # It keeps the record in hand, so the revocation waits until the session has expired.
        async with asyncio.timeout(10):
            while len(told.events) < 2:  # noqa: ASYNC110 - expiry depends on a clock
                await asyncio.sleep(0.05)
        assert told.events[1] == ("lost", frozenset([T0]))


async def test_poll_returns_nothing_when_the_session_expires_during_it(client: Client) -> None:
    def held_up(content: bytes) -> bytes:
        if content == b"2":
            be_stopped()
        return content

    told = Callbacks()
    async with client.consumer("t", group=told.group(), value_deserializer=held_up) as consumer:
        assert await consumer.poll(5, timeout_s=5.0) == []
        assert told.events == [("assigned", frozenset([T0])), ("lost", frozenset([T0]))]


async def test_waiting_application_is_not_idle_during_a_turn(
    node: FakeNode, coordinator: Coordinator, client: Client
) -> None:
    goes_on = pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    node.coordinate = lambda asked: coordinator.answer(asked) or goes_on
    told = Callbacks()
    async with client.consumer("t", group=replace(told.group(), poll_timeout_s=0.3)) as consumer:
        for _ in range(RECORDS):
            await anext(consumer)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        await consumer.turn()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting, 1.0)
        assert told.events == [("assigned", frozenset([T0]))]


async def test_application_waiting_for_a_dead_letter_is_not_idle(
    node: FakeNode, coordinator: Coordinator, client: Client
) -> None:
    goes_on = pb.GroupHeartbeatReply(revision=1, generation=1, unchanged=True)
    node.coordinate = lambda asked: coordinator.answer(asked) or goes_on
    node.add_topic("dead")
    await publish(node, b"{", b"1")
    told = Callbacks()
    group = replace(told.group(), poll_timeout_s=0.3)
    async with client.consumer("t", group=group, value_deserializer="json", dead_letter="dead") as consumer:
        for _ in range(RECORDS):
            await anext(consumer)
        node.hold = asyncio.Event()
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        assert told.events == [("assigned", frozenset([T0]))]
        node.hold.set()
        assert (await asyncio.wait_for(waiting, 5)).value == 1
    assert len(node.partition("dead").batches) == 1
