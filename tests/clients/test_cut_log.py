"""A truncated log: clients that have read lost records are notified instead of continuing after them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.stand import Stand
from tests.clients.sharing import until

from tidelog import Client, Group, TopicPartition
from tidelog.errors import OffsetOutOfRangeError
from tidelog.subscriptions.consumer_options import OnOutOfRange
from tidelog_proto import broker_pb2 as pb

PATIENCE_S = 20.0
WHERE = TopicPartition("t", 0)


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    stand = Stand(tmp_path / "data")
    yield stand
    await stand.close()


def client_of(stand: Stand) -> Client:
    return Client(f"127.0.0.1:{stand.node.port}")


async def publish(client: Client, *values: bytes) -> None:
    async with client.producer("t") as producer:
        for value in values:
            await producer.send(value, partition=0)


async def read(
    client: Client, group: Group | str, policy: OnOutOfRange = "error", count: int = 1
) -> list[bytes | None]:
    async with client.consumer("t", group=group, on_out_of_range=policy) as consumer:
        values: list[bytes | None] = []
        while len(values) < count:
            records = await consumer.poll(count - len(values), timeout_s=PATIENCE_S)
            assert records
            values += [record.value for record in records]
        return values


async def test_position_has_the_epoch_of_the_last_read_record(stand: Stand) -> None:
    await stand.start()
    async with client_of(stand) as client:
        await client.create_topic("t", partitions=1)
        await publish(client, b"a", b"b")
    await stand.restart()
    async with client_of(stand) as client:
        await publish(client, b"c")
        first, last = [batch.header.epoch for batch in (await client.fetch("t", 0, 0)).batches][-2:]
        assert first < last, "each start opens an epoch"
        (lag,) = await client.groups.lag("g", "t")
        assert (lag.epoch, lag.next_offset) == (None, None)
        for count, epoch in ((2, first), (1, last)):
            await read(client, "g", count=count)
            (held,) = await client.committed("g")
            assert held.epoch == epoch
        assert (await client.groups.lag("g"))[0].epoch == last
        consumer = client.consumer("t", group="alone", partitions=[0])
        assert await consumer.poll(1, timeout_s=PATIENCE_S)
        assert (await consumer.commit())[WHERE].epoch == first
        await consumer.close()
        await client.groups.reset("g", 1)
        assert (await client.committed("g"))[0].epoch is None, "a moved position was not read"
    async with client_of(stand) as other:
        assert (await other.commit("by hand", "t", {0: 3}))[0].epoch is None, "this client has not read it either"
        await other.fetch("t", 0, 0)
        assert (await other.commit("read", "t", {0: 3}))[0].epoch == last


@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
async def test_reader_of_lost_records_does_not_continue_after_them(
    stand: Stand, policy: OnOutOfRange, caplog: pytest.LogCaptureFixture
) -> None:
    await stand.start()
    image = stand.path.with_name("image")
    async with client_of(stand) as client:
        await client.create_topic("t", partitions=1)
        await publish(client, b"a", b"b")
        shutil.copytree(stand.path, image)
        await publish(client, b"lost", b"lost")
        await read(client, "g", count=4)
        (held,) = await client.committed("g")
        assert held.next_offset == 4
    await stand.crash()
    shutil.rmtree(stand.path)
    image.rename(stand.path)
    await stand.start()
    async with client_of(stand) as client:
        await publish(client, *(b"new-%d" % number for number in range(4)))
        topic_id = (await client.topics())[0].topic_id
        entry = pb.CommitEntry(topic_id=topic_id, next_offset=held.next_offset, record_epoch=held.epoch)
        await (await stand.peer()).ask(commit=pb.Commit(group="g", entries=[entry]))
        if policy == "error":
            with pytest.raises(OffsetOutOfRangeError, match="offset 4 is after the end of its epoch 0"):
                await read(client, "g")
        elif policy == "earliest":
            assert await read(client, "g", policy, count=6) == [b"a", b"b", *(b"new-%d" % each for each in range(4))]
        else:
            async with client.consumer("t", group="g", on_out_of_range=policy) as consumer:
                await consumer.begin()
                await until(lambda: "continuing at 6" in caplog.text)
                await publish(client, b"newest")
                assert [one.value for one in await consumer.poll(1, timeout_s=PATIENCE_S)] == [b"newest"]
        assert (policy == "error") != ("position 4 is out of range" in caplog.text)
