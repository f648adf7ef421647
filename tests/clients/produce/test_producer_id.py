"""Producers that share an id, as copies of a machine do: no record is acknowledged that is not stored."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.clients.fake_cluster import running_cluster
from tests.clients.fake_node import Do

from tidelog import Client, Producer
from tidelog.errors import OutcomeUnknownError, ProducerIdSharedError
from tidelog.model import Compression
from tidelog.produce import producer
from tidelog.produce.producer_id import ProducerId, make_producer_id
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb

ERROR = ProducerIdSharedError("two have it")


def test_each_shared_id_is_replaced_once() -> None:
    shared = ProducerId(5)
    shared.give_up(5, ERROR)
    second = shared.number
    assert second not in {0, 5}
    shared.give_up(5, ERROR)  # the error of another queue for the same id
    assert shared.number == second
    shared.give_up(second, ERROR)
    assert shared.number not in {0, 5, second}
    assert shared.over is None


def test_named_producer_with_shared_id_fails() -> None:
    shared = ProducerId(5, is_named=True)
    shared.give_up(5, ERROR)
    assert shared.number == 5
    assert shared.over is not None
    assert shared.over.__cause__ is ERROR
    assert shared.over.definite
    first = shared.over
    shared.give_up(5, ERROR)
    assert shared.over is first


def test_ids_are_never_0_and_differ() -> None:
    ids = {make_producer_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(0 < each < 1 << 63 for each in ids)


@pytest.fixture
def one_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make new producers start with the same id, as copies of a machine do."""
    monkeypatch.setattr(producer, "make_producer_id", lambda: 77)


@pytest.fixture
async def topic(real: Client) -> str:
    name = f"shared-{uuid.uuid4().hex[:8]}"
    await real.create_topic(name, partitions=2)
    return name


async def values_in(client: Client, topic: str, partition: int) -> list[bytes | None]:
    return [value for batch in (await client.fetch(topic, partition, offset=0)).batches for value in batch.values()]


@pytest.mark.usefixtures("one_id")
@pytest.mark.parametrize("compression", [None, "gzip", "lz4", "zstd"])
async def test_second_producer_gets_error_and_continues_under_a_new_id(
    real: Client, topic: str, compression: Compression | None
) -> None:
    one, two = (real.producer(topic, compression=compression) for _ in range(2))
    for number in range(3):
        await one.send(b"one %d" % number, partition=0)
    with pytest.raises(ProducerIdSharedError) as failure:
        await two.send(b"lost", partition=0)
    assert failure.value.definite
    assert not failure.value.retriable
    receipts = [await each.send(b"on %d" % number, partition=0) for number, each in enumerate((two, one, two))]
    assert [receipt.offset for receipt in receipts] == [3, 4, 5]
    assert (await two.send(b"elsewhere", partition=1)).offset == 0
    assert await values_in(real, topic, 0) == [b"one 0", b"one 1", b"one 2", b"on 0", b"on 1", b"on 2"]
    await one.close()
    await two.close()


@pytest.mark.usefixtures("one_id")
async def test_records_of_concurrent_copies_are_stored_or_refused(real: Client, topic: str) -> None:
    producers = [real.producer(topic, batch_bytes=200) for _ in range(3)]
    stored: dict[int, bytes] = {}
    refused: dict[bytes, bool] = {}

    async def send(producer: Producer, value: bytes) -> None:
        try:
            receipt = await producer.send(value, partition=0)
        except ProducerIdSharedError as error:
            refused[value] = error.definite
        else:
            assert stored.setdefault(receipt.offset, value) == value, "two records were acknowledged with one offset"

    for number in range(40):
        values = [b"%d of %d" % (number, index) + bytes(80) for index in range(len(producers))]
        await asyncio.gather(*(send(each, value) for each, value in zip(producers, values, strict=True)))
    assert refused
    assert all(refused.values())
    assert await values_in(real, topic, 0) == [stored[offset] for offset in range(len(stored))]
    assert len(stored) + len(refused) == 120
    for each in producers:
        await each.close()


@pytest.mark.usefixtures("one_id")
@pytest.mark.parametrize("compression", [None, "gzip", "lz4", "zstd"])
async def test_resend_to_the_next_owner_is_a_retry(compression: Compression | None) -> None:
    """A resent batch has the same bytes with any compression; a foreign batch with its number is refused."""
    async with running_cluster() as cluster:
        cluster.add_topic("t")
        async with Client(cluster.bootstrap) as client, Client(cluster.bootstrap) as other:
            one, two = client.producer("t", compression=compression), other.producer("t", compression=compression)
            await one.send(b"first")
            cluster.nodes[0].script.append(Do.DROP_AFTER)
            again = asyncio.ensure_future(one.send(b"second"))
            await cluster.nodes[0].received("publish", 2)
            cluster.move("t", cluster.nodes[2])
            assert (await again).offset == 1
            with pytest.raises(ProducerIdSharedError):
                await two.send(b"another")
            assert (await one.send(b"third")).offset == 2
            assert (await two.send(b"fourth")).offset == 3
        assert cluster.values("t") == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.usefixtures("one_id")
async def test_earlier_attempt_is_not_taken_for_a_foreign_batch() -> None:
    async with running_cluster() as cluster, Client(cluster.bootstrap) as client:
        one, two = client.producer("t"), client.producer("t")
        await one.send(b"first")
        cluster.nodes[0].script.append(Do.DROP_BEFORE)
        with pytest.raises(OutcomeUnknownError) as failure:  # the outcome of the first attempt is unknown
            await two.send(b"another")
        assert isinstance(failure.value.__cause__, ProducerIdSharedError)
        assert (await two.send(b"second")).offset == 1
        assert cluster.values("t") == [b"first", b"second"]


@pytest.mark.usefixtures("one_id")
async def test_duplicate_reported_by_number_only_is_not_accepted() -> None:
    async with running_cluster() as cluster, Client(cluster.bootstrap) as client:
        one, two = client.producer("t"), client.producer("t")
        await one.send(b"first")
        partition = cluster.nodes[0].partitions[cluster.key("t")]
        message = pb.ProducerSnapshot.FromString(partition.producers.snapshot())
        message.producers[0].window[0].ClearField("fingerprint")
        partition.producers = ProducerTable.restore(message.SerializeToString())
        with pytest.raises(ProducerIdSharedError) as failure:
            await two.send(b"another")
        assert failure.value.definite
        assert (await two.send(b"second")).offset == 1
        assert cluster.values("t") == [b"first", b"second"]
