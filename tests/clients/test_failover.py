"""Owners that move, die, freeze and lag: records are stored once, in order, and read without loss or duplicates."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_cluster import ClusterNode, FakeCluster, running_cluster
from tests.clients.fake_node import Do, Refuse

from tidelog import Client, Consumer
from tidelog.errors import DeliveryTimeoutError
from tidelog_proto import broker_pb2 as pb

pytestmark = pytest.mark.usefixtures("short_timeouts")


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time-outs for silent nodes."""
    monkeypatch.setattr("tidelog.cluster.owner_changes.SILENCE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.owner_changes.GRACE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.routing.SILENCE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.routing.HEDGE_S", 0.05)
    monkeypatch.setattr("tidelog.cluster.routing.REQUEST_HEDGE_S", 0.1)
    monkeypatch.setattr("tidelog.subscriptions.liveness_probe.PROBE_S", 0.1)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    client = Client(cluster.bootstrap, request_timeout_s=20.0)
    yield client
    await client.abort()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    return [(await anext(consumer)).value for _ in range(count)]


async def asked_who_owns(nodes: list[ClusterNode]) -> None:
    """Wait until one of the nodes was asked for metadata; which one depends on timing."""
    waiting = [asyncio.ensure_future(node.received("metadata")) for node in nodes]
    async with asyncio.timeout(30):
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


# ------------------------------------------------------------------------------------------------- routing


async def test_cluster_is_discovered_through_any_node(cluster: FakeCluster) -> None:
    for node in cluster.nodes:
        async with Client(["127.0.0.1:1", f"127.0.0.1:{node.port}"]) as client:
            producer = client.producer("wide")
            for partition in range(3):
                await producer.send(b"%d" % partition, partition=partition)
    assert [node.requests.count("publish") for node in cluster.nodes] == [3, 3, 3]


async def test_frozen_bootstrap_node_does_not_delay_the_first_request(cluster: FakeCluster, client: Client) -> None:
    cluster.nodes[0].freeze()
    cluster.move("t", cluster.nodes[1])
    assert (await client.producer("t").send(b"v")).offset == 0
    assert len(await client.topics()) == 2


async def test_concurrent_metadata_requests_are_merged(cluster: FakeCluster, client: Client) -> None:
    for number in range(20):
        cluster.add_topic(f"topic-{number}")
    await client.connect()
    await asyncio.gather(*(client.list_offsets(f"topic-{number}", "latest") for number in range(20)))
    assert cluster.asked("metadata") == 1


async def test_lagging_node_does_not_restore_owners(cluster: FakeCluster, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"one")
    cluster.nodes[0].lag()
    cluster.nodes[1].lag()
    cluster.move("t", cluster.nodes[2])
    assert (await producer.send(b"two")).offset == 1, "only the third node is current"
    await client.fetch("t", 0, 0)
    assert cluster.nodes[2].requests.count("fetch") == 1, "the others' old epochs did not move it back"


async def test_epoch_in_an_error_outdates_metadata(cluster: FakeCluster, client: Client) -> None:
    await client.fetch("t", 0, 0)
    cluster.move("t", None)
    cluster.nodes[1].lag()
    waiting = asyncio.ensure_future(client.fetch("t", 0, 0))
    await cluster.nodes[1].received("metadata")
    cluster.move("t", cluster.nodes[1])
    cluster.nodes[1].believes = None
    assert (await waiting).next_offset == 0


# --------------------------------------------------------------------------------------------------------- publishing


@pytest.mark.parametrize("fault", [None, Do.DROP_BEFORE, Do.DROP_AFTER, Refuse(pb.EPOCH_CHANGING)])
async def test_publish_continues_after_owner_failure(
    cluster: FakeCluster, client: Client, fault: Do | Refuse | None
) -> None:
    producer = client.producer("t", batch_bytes=64)
    values = numbered(400)
    await producer.send_many(values[:100])
    # After that it stores nothing more; otherwise it could store everything before it stops, on a slow machine.
    faults = [] if fault is None else [fault]
    cluster.nodes[0].script.extend([Do.STORE, *faults, *[Do.SILENT_BEFORE] * len(values)])
    sending = [await producer.enqueue(value) for value in values[100:]]
    await cluster.nodes[0].stop()
    cluster.move("t", None)
    await asked_who_owns(cluster.nodes[1:])
    cluster.move("t", cluster.nodes[2])
    assert [(await each).offset for each in sending] == list(range(100, 400))
    assert cluster.values("t") == values


@pytest.mark.parametrize("stored", [Do.SILENT_BEFORE, Do.SILENT_AFTER])
async def test_frozen_owner_is_abandoned_once_another_is_known(
    cluster: FakeCluster, client: Client, stored: Do
) -> None:
    producer = client.producer("t", batch_bytes=64)
    await producer.send(b"0")
    cluster.nodes[0].script.append(stored)
    sending = [await producer.enqueue(value) for value in numbered(50, 1)]
    await cluster.nodes[0].received("publish", 2)
    cluster.nodes[0].freeze()
    cluster.move("t", cluster.nodes[1])
    assert [(await each).offset for each in sending] == list(range(1, 51)), "long before the request timeout"
    cluster.nodes[0].thaw()
    assert (await producer.send(b"last")).offset == 51
    assert cluster.values("t") == [*numbered(51), b"last"], "late copies and late answers change nothing"


async def test_frozen_node_that_stays_owner_is_waited_for(cluster: FakeCluster, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"0")
    cluster.nodes[0].freeze()
    pending = await producer.enqueue(b"1")
    await asyncio.wait([asyncio.ensure_future(node.received("metadata")) for node in cluster.nodes[1:]])
    assert not pending.done()
    cluster.nodes[0].thaw()
    assert (await pending).offset == 1
    assert cluster.asked("publish") == 2


async def test_responsive_former_owner_is_waited_for(cluster: FakeCluster, client: Client) -> None:
    """Its answer is definite, and arrives within the grace period."""
    producer = client.producer("t")
    await producer.send(b"0")
    cluster.nodes[0].script.append(Do.SILENT_AFTER)
    pending = await producer.enqueue(b"1")
    await cluster.nodes[0].received("publish", 2)
    cluster.move("t", cluster.nodes[1])
    async with client.consumer("t"):  # the first node still answers other requests
        assert (await pending).offset == 1
    assert cluster.values("t") == [b"0", b"1"]


async def test_without_an_owner_retries_back_off_and_outcome_is_definite(cluster: FakeCluster, client: Client) -> None:
    cluster.move("t", None)
    with pytest.raises(DeliveryTimeoutError) as caught:
        await client.producer("t", delivery_timeout_s=0.5).send(b"v")
    assert caught.value.definite
    assert cluster.asked("metadata") < 50


async def test_publish_with_unknown_outcome_is_not_definite(cluster: FakeCluster, client: Client) -> None:
    producer = client.producer("t", delivery_timeout_s=2)
    await producer.send(b"0")
    cluster.nodes[0].script.append(Do.DROP_AFTER)
    pending = await producer.enqueue(b"1")
    await cluster.nodes[0].received("publish", 2)
    await cluster.nodes[0].stop()
    with pytest.raises(DeliveryTimeoutError) as caught:
        await pending
    assert not caught.value.definite


async def test_partition_without_an_owner_does_not_delay_others(cluster: FakeCluster, client: Client) -> None:
    cluster.move("wide", None, partition=1)
    producer = client.producer("wide")
    stuck = await producer.enqueue(b"1", partition=1)
    async with client.consumer("wide", start=0) as consumer:
        await producer.send(b"0", partition=0)
        await producer.send(b"2", partition=2)
        assert sorted(value or b"" for value in await take(consumer, 2)) == [b"0", b"2"]
        assert not stuck.done()
        cluster.move("wide", cluster.nodes[0], partition=1)
        await stuck
        assert await take(consumer, 1) == [b"1"]


async def test_aborted_producer_leaves_no_tasks(cluster: FakeCluster, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"0")
    cluster.nodes[0].script.append(Do.SILENT_AFTER)
    pending = await producer.enqueue(b"1")
    await cluster.nodes[0].received("publish", 2)
    await producer.abort()
    cluster.nodes[0].drop_connections()
    with pytest.raises(Exception, match="closed before"):
        await pending


# ------------------------------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize("how", ["told", "killed", "frozen"])
async def test_consumer_continues_at_the_new_owner(cluster: FakeCluster, client: Client, how: str) -> None:
    async with Client(cluster.bootstrap) as other:
        producer = other.producer("t")
        await producer.send_many(numbered(10))
        async with client.consumer("t") as consumer:
            assert await take(consumer, 5) == numbered(5)
            if how == "killed":
                await cluster.nodes[0].stop()
            elif how == "frozen":
                cluster.nodes[0].freeze()
            cluster.move("t", cluster.nodes[1])
            await producer.send_many(numbered(10, 10))
            assert await take(consumer, 15) == numbered(15, 5)
            if how == "frozen":
                cluster.nodes[0].thaw()
                cluster.nodes[0].push()
            await producer.send(b"20")
            assert await take(consumer, 1) == [b"20"]


async def test_long_poll_moves_from_a_frozen_owner_to_the_new_one(cluster: FakeCluster, client: Client) -> None:
    await client.fetch("t", 0, 0)
    cluster.nodes[0].freeze()
    fetching = asyncio.ensure_future(client.fetch("t", 0, 0, min_bytes=1, wait_ms=100))
    await asyncio.sleep(0)
    cluster.move("t", cluster.nodes[1])
    assert (await fetching).next_offset == 0
    assert (await client.list_offsets("t", "latest"))[0].offset == 0
    assert cluster.nodes[1].requests.count("fetch") == 1


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_any_node_accepts_commits(cluster: FakeCluster, client: Client, how: str) -> None:
    cluster.nodes[0].reach("t", 2)
    await client.commit("g", "t", {0: 1})
    (asked,) = (node for node in cluster.nodes if "commit" in node.requests)
    if how == "killed":
        await asked.stop()
    else:
        asked.freeze()
    assert (await client.commit("g", "t", {0: 2}))[0].next_offset == 2
    assert [each.next_offset for each in await client.committed("g", "t")] == [2]


# --------------------------------------------------------------------------------------------------------- combined


@pytest.mark.parametrize("seed", range(6))
async def test_records_are_stored_and_read_once_under_faults(cluster: FakeCluster, seed: int) -> None:
    """Producer and consumer continue while partitions move, nodes die, freeze and return, and answers get lost."""
    draw = random.Random(seed)
    count = 600
    async with Client(cluster.bootstrap, request_timeout_s=20.0) as client:
        producer = client.producer("wide", batch_bytes=64)
        progress = asyncio.Event()

        async def publish(partition: int) -> None:
            for at in range(0, count, 20):
                await producer.send_many(numbered(20, at), partition=partition)
                progress.set()

        async def read() -> dict[int, list[bytes | None]]:
            seen: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
            async with client.consumer("wide", start=0, prefetch_records=50) as consumer:
                while sum(map(len, seen.values())) < 3 * count:
                    record = await anext(consumer)
                    assert record.offset == len(seen[record.partition])
                    seen[record.partition].append(record.value)
            return seen

        tasks = [asyncio.ensure_future(publish(partition)) for partition in range(3)]
        reading = asyncio.ensure_future(read())
        while publishing := [task for task in tasks if not task.done()]:
            progress.clear()
            waiting = asyncio.ensure_future(progress.wait())
            await asyncio.wait([waiting, *publishing], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            await disturb(cluster, draw)
        for node in cluster.nodes:
            await recover(cluster, node.node_id)
        await asyncio.gather(*tasks)
        seen = await reading
    for partition in range(3):
        assert seen[partition] == numbered(count) == cluster.nodes[0].partition("wide", partition).values()


async def recover(cluster: FakeCluster, node_id: str) -> None:
    node = next(node for node in cluster.nodes if node.node_id == node_id)
    node.believes = None
    if not node.alive:
        await node.restart()
    if node.frozen:
        node.thaw()


async def disturb(cluster: FakeCluster, draw: random.Random) -> None:
    """Inject one fault, then give every partition a live owner (a takeover), and sometimes repair a fault."""
    node = draw.choice(cluster.nodes)
    fit = [each for each in cluster.nodes if each is not node and each.alive and not each.frozen]
    match draw.randrange(6):
        case 0 if fit and node.alive:
            await node.stop()
        case 1 if fit and node.alive:
            node.freeze()
        case 2:
            node.drop_connections()
        case 3:
            faults: list[Do | Refuse] = [Do.DROP_AFTER, Do.DROP_BEFORE, Refuse(pb.TIMED_OUT)]
            node.script.append(draw.choice(faults))
        case 4:
            node.lag()
        case _:
            cluster.move("wide", draw.choice([*fit, None]), draw.randrange(3))
    for partition in range(3):
        owner = cluster.owner("wide", partition)
        if owner is None or not owner.alive or owner.frozen:
            living = [each for each in cluster.nodes if each.alive and not each.frozen]
            cluster.move("wide", draw.choice(living), partition)
    for each in cluster.nodes:
        believed = each.believes
        if believed is not None and any(cluster.owners[key][0] == each.node_id for key in believed):
            each.believes = None  # an owner knows its own epoch
        elif draw.random() < 0.3:
            await recover(cluster, each.node_id)


@pytest.mark.parametrize("is_gone", [True, False])
async def test_waiting_producer_logs_the_reason(
    cluster: FakeCluster,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_gone: bool,
) -> None:
    """Whether its owner is unreachable or refuses; logged once, and again only after records were stored."""
    monkeypatch.setattr("tidelog.produce.sender.LOG_AFTER_S", 0.2)
    cluster.move("wide", cluster.nodes[0], 1)
    producer = client.producer("wide", delivery_timeout_s=1.5)
    await producer.send(b"a", partition=1)

    def told() -> list[str]:
        return [record.message for record in caplog.records if "publishing fails" in record.message]

    for times in (1, 2):
        if is_gone:
            await cluster.nodes[0].stop()
        else:
            cluster.nodes[0].script.extend([Refuse(pb.QUORUM_LOST)] * 500)
        with pytest.raises(DeliveryTimeoutError) as raised:
            await producer.send(b"b", partition=1)
        assert len(told()) == times
        reason = "cannot connect" if is_gone else "scripted"
        assert reason in told()[-1]
        assert reason in str(raised.value)
        if is_gone:
            await cluster.nodes[0].restart()
        else:
            cluster.nodes[0].script.clear()
        await producer.send(b"c", partition=1)
    await producer.close()
