"""Consumers of several topics, and of topics that match a pattern."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clients.consume.test_consumer import end_all, nothing_comes, numbered, places, publish, take
from tests.clients.fake_node import FakeNode

from tidelog import Client, TopicPartition, sync
from tidelog.consume import topic_discovery
from tidelog.errors import (
    InvalidRequestError,
    UnknownTopicError,
)
from tidelog_proto import broker_pb2 as pb

T0 = TopicPartition("t", 0)
WIDE = [TopicPartition("wide", number) for number in range(4)]


async def test_several_topics_are_read_and_committed_by_one_consumer(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(3))
    await publish(node, *numbered(2), topic="wide", partition=2)
    async with client.consumer("t", "wide", group="g", partitions="all") as consumer:
        assert consumer.assignment() == {T0, *WIDE}
        assert sorted(await places(consumer, 5)) == [("t", 0, n) for n in range(3)] + [("wide", 2, n) for n in range(2)]
        assert consumer.position() == dict.fromkeys(WIDE, 0) | {T0: 3, WIDE[2]: 2}
        held = await consumer.commit()
        assert {where: each.next_offset for where, each in held.items()} == {T0: 3, WIDE[2]: 2}
    assert node.requests.count("subscribe") == 1, "one subscription per node"
    await publish(node, b"new", topic="wide", partition=2)
    async with client.consumer("wide", "t", group="g", partitions="all") as consumer:
        assert await places(consumer, 1) == [("wide", 2, 2)]


async def test_start_and_partitions_are_given_per_topic(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    await publish(node, *numbered(4), topic="wide", partition=1)
    async with client.consumer("t", "wide", start={WIDE[1]: 3}) as consumer:
        assert consumer.position() == {T0: 0, WIDE[1]: 3}, "only the partitions that `start` names"
    async with client.consumer("t", "wide", start=2, partitions={"t": [0], "wide": [1, 1]}) as consumer:
        assert consumer.position() == {T0: 2, WIDE[1]: 2}


@pytest.mark.parametrize(
    "options",
    [
        {"start": {0: 1}},
        {"start": {TopicPartition("other", 0): 1}},
        {"start": {T0: -1}},
        {"partitions": [0]},
        {"partitions": {"t": [0]}},
        {"pattern": "t"},
        {"dead_letter": "no such/name", "value_deserializer": "json"},
    ],
)
def test_partition_without_a_topic_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError if "dead_letter" not in options else Exception):
        Client("127.0.0.1:1").consumer("t", "wide", **options)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": (["t", "wide"],)}, r"pass several as consumer\('a', 'b'\)"),
        ({"topics": (b"t",)}, "must be text"),
        ({"topics": ("t",), "group": 123}, "group must be a name"),
        ({"topics": ("t",), "partitions": 0}, "partitions must be numbers"),
        ({"topics": ("t",), "dead_letter": 5, "value_deserializer": "json"}, "name must be a str"),
        ({"pattern": b"t"}, "pattern must be text"),
    ],
)
def test_arguments_of_wrong_type_are_refused(arguments: dict[str, Any], text: str) -> None:
    for client in (Client("127.0.0.1:1"), sync.Client("127.0.0.1:1")):
        with pytest.raises(InvalidRequestError, match=text):
            client.consumer(*arguments.get("topics", ()), **{k: v for k, v in arguments.items() if k != "topics"})


async def test_positions_of_wrong_type_are_refused(node: FakeNode, client: Client) -> None:
    async with client.consumer("t", group="g", partitions="all") as consumer:
        for wrong, text in (
            ({0: 1}, "got the key 0"),
            ({("t", 0): 1}, r"got the key \('t', 0\)"),
            ([1], "positions must be a mapping"),
            ({TopicPartition("t", "0"): 1}, "a partition of topic 't' must be an integer"),  # type: ignore[arg-type]
            ({T0: "1"}, "the offset to commit for t/0 must be an integer"),
            ({T0: 1.0}, "must be an integer"),
        ):
            positions: Any = wrong
            with pytest.raises(InvalidRequestError, match=text):
                await consumer.commit(positions)
            with pytest.raises(InvalidRequestError, match=text):
                consumer.commit_soon(positions)
    for group, given, text in (
        (123, {0: 1}, "name must be a str"),
        ("g", {T0: 1}, "must be an integer"),
        ("g", [1], "next offset"),
    ):
        what: Any = (group, "t", given)
        with pytest.raises(InvalidRequestError, match=text):
            await client.commit(*what)
    with pytest.raises(InvalidRequestError, match="name must be a str"):
        await client.groups.describe(5)  # type: ignore[arg-type]


async def test_dead_letter_topic_is_never_read(node: FakeNode, client: Client) -> None:
    dead: dict[str, Any] = {"dead_letter": "wide", "value_deserializer": "json"}
    with pytest.raises(InvalidRequestError, match="'wide' is this consumer's dead-letter topic"):
        client.consumer("t", "wide", **dead)
    async with client.consumer(pattern="t|wide", **dead) as consumer:
        assert consumer.assignment() == {T0}
        with pytest.raises(InvalidRequestError, match="dead-letter"):
            await consumer.assign({WIDE[0]: 0})
        assert consumer.assignment() == {T0}
    async with client.consumer(**dead) as consumer:
        with pytest.raises(InvalidRequestError, match="dead-letter"):
            await consumer.assign({WIDE[0]: None})


async def test_matching_topics_are_added_later(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_topic("orders.eu")
    await publish(node, b"eu", topic="orders.eu")
    async with client.consumer(pattern=r"orders\..*", start="latest") as consumer:
        assert consumer.assignment() == {("orders.eu", 0)}
        assert await nothing_comes(consumer)
    monkeypatch.setattr(topic_discovery, "NEW_PARTITIONS_S", 0.01)
    async with client.consumer(pattern=r"orders\..*", start="latest") as consumer:
        node.add_topic("orders.us")
        node.add_topic("other.us")
        await publish(node, b"us", topic="orders.us")
        assert await take(consumer, 1) == [b"us"], "later topics are read from offset 0"
        assert consumer.assignment() == {("orders.eu", 0), ("orders.us", 0)}


async def test_pattern_continues_without_a_deleted_topic_and_adds_its_successor(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_discovery, "NEW_PARTITIONS_S", 0.01)
    await publish(node, b"t")
    async with client.consumer(pattern="t|wide") as consumer:
        assert await take(consumer, 1) == [b"t"]
        await client.delete_topic("t")
        end_all(node, pb.UNKNOWN_TOPIC)
        await publish(node, b"wide", topic="wide", partition=3)
        assert await take(consumer, 1) == [b"wide"]
        assert T0 not in consumer.assignment()
        node.add_topic("t")
        await publish(node, b"anew")
        assert await take(consumer, 1) == [b"anew"]


async def test_deletion_of_a_named_topic_ends_reading(node: FakeNode, client: Client) -> None:
    async with client.consumer("t", "wide") as consumer:
        await node.received("subscribe")
        await client.delete_topic("t")
        end_all(node, pb.UNKNOWN_TOPIC)
        with pytest.raises(UnknownTopicError):
            await anext(consumer)


async def test_manually_assigned_partition_is_not_started_again(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_discovery, "NEW_PARTITIONS_S", 0.01)
    await publish(node, *numbered(4), topic="wide", partition=1)
    async with client.consumer("wide", "t") as consumer:
        node.add_topic("wide", 5)
        await publish(node, *numbered(4), topic="wide", partition=4)
        await consumer.assign({TopicPartition("wide", 4): 3})
        assert max(await places(consumer, 5)) == ("wide", 4, 3)
        assert await nothing_comes(consumer)
