"""The order in which records are accepted, and the topic and partition that they are written to."""

from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeNode

from tidelog import Client
from tidelog.errors import UnknownPartitionError, UnknownTopicError


@pytest.mark.parametrize("partitions", [1, 4])
async def test_records_waiting_for_a_recreated_topic_are_not_written_to_it(
    node: FakeNode, client: Client, partitions: int
) -> None:
    node.hold = asyncio.Event()
    producer = client.producer("wide")
    first = await producer.enqueue(b"v", partition=3)
    await node.received("publish")
    waiting = await producer.enqueue(b"w", partition=3)
    del node.topics["wide"]
    for partition in range(4):
        del node.partitions[b"wide".ljust(16, b"\0"), partition]
    node.add_topic("wide", partitions)
    await client._router.topic_now("wide")
    node.hold.set()
    await first  # stored in the old topic
    with pytest.raises(UnknownTopicError, match="create a new producer") as caught:
        await waiting
    assert caught.value.definite
    assert node.values("wide") == []


async def test_order_is_kept_while_the_topic_is_looked_up(node: FakeNode, client: Client) -> None:
    """The route arrives late, and other calls look it up meanwhile."""
    info = node.topics.pop("t")
    node.cannot_say = True
    producer = client.producer("t")
    sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(20)]
    await node.received("metadata", 3)
    node.topics["t"] = info
    number = 20
    while not sends[0].done():
        way = producer.send(b"%d" % number) if number % 3 else producer.send_many([b"%d" % number])
        sends.append(asyncio.ensure_future(way))  # type: ignore[arg-type]  # a receipt, or receipts
        number += 1
        await asyncio.sleep(0)
    await asyncio.gather(*sends)
    assert node.values("t") == [b"%d" % number for number in range(number)]


async def test_waiting_call_with_many_pieces_is_not_overtaken(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    producer = client.producer("t", buffer_bytes=1000, batch_bytes=500)
    large = asyncio.ensure_future(producer.send_many([b"%d" % number * 300 for number in range(6)], partition=0))
    await node.received("publish")
    small = asyncio.ensure_future(producer.send(b"small"))
    node.hold.set()
    await asyncio.gather(large, small)
    assert [(value or b"")[:1] for value in node.values("t")] == [b"0", b"1", b"2", b"3", b"4", b"5", b"s"]


async def test_added_partition_is_found(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"v")
    node.add_topic("t", 3)
    sends = [producer.send(b"%d" % number, partition=2) for number in range(5)]
    assert [receipt.offset for receipt in await asyncio.gather(*sends)] == [0, 1, 2, 3, 4]
    assert (await producer.send_many([b"w"], partition=1))[0].partition == 1
    with pytest.raises(UnknownPartitionError):
        await producer.send(b"v", partition=3)


async def test_keyless_records_keep_their_place_among_keyed_ones(node: FakeNode, client: Client) -> None:
    receipts = await client.producer("t").send_many([b"0", b"1", b"2", b"3"], keys=[None, b"k", None, b"k"])
    assert node.values("t") == [b"0", b"1", b"2", b"3"]
    assert [receipt.offset for receipt in receipts] == [0, 1, 2, 3]
