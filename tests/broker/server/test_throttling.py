"""Rate quotas on a running node: a throttled caller waits, and other callers do not."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled
from tests.clients.counted import Counted

from tidelog import Client
from tidelog.cluster import owner_changes, throttle
from tidelog.errors import DeliveryTimeoutError, QuotaExceededError
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_broker.node.node import Node
from tidelog_broker.wire import quota_account
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PROTOCOL_VERSION

HERE = "address:127.0.0.1/32"
KIB = 1024


async def bound(node: Node, **limits: Any) -> None:
    change = pb.SecurityChange(set_quota=pb.Quota(subject=HERE, **limits))
    await node.broker.security_changes.change(change)


async def unbound(node: Node) -> None:
    await node.broker.security_changes.change(pb.SecurityChange(remove_quota=HERE))


async def elsewhere(stand: Stand) -> Peer:
    """Return a client at an address that has no quota."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stand.node.port, local_addr=("127.0.0.2", 0))
    peer = Peer(reader, writer)
    peer.start_reading()
    stand.peers.append(peer)
    await peer.greet()
    return peer


async def test_request_beyond_the_rate_passes_and_then_throttles(stand: Stand, node: Node) -> None:
    peer, other = await stand.peer(), await elsewhere(stand)
    topic = (await peer.create()).topic_id
    await bound(node, produce_bytes=8 * KIB)
    large = batch(bytes(400 * KIB))
    told = (await peer.reply(peer.post_publish(topic, large))).envelope
    assert told.publish_reply.results[0].epoch == 0
    assert 30_000 < told.throttle_ms < 60_000, "a batch larger than the bucket passes, and is owed for"
    assert (await peer.ask(metadata=pb.Metadata())).envelope.throttle_ms == 0, "what else is asked is not held up"
    waiting, behind = peer.post_publish(topic, large), peer.post(metadata=pb.Metadata())
    await peer.reply(waiting)
    early = peer.post_publish(topic, large)
    assert (await other.publish(topic, batch(b"other")))[0].base_offset == 2
    assert not peer.answered(early)
    account = node.broker.accounts.of("address", "127.0.0.1/32")
    assert account is not None
    assert account.waiting == 1
    await unbound(node)
    await peer.reply(early)
    await peer.reply(behind)
    assert (await peer.reply(peer.post_publish(topic, large))).envelope.throttle_ms == 0
    assert account.throttled_s > 0
    counted = node.broker.metrics.registry.get_sample_value("tidelog_throttled_seconds_total", {"caller": HERE})
    assert counted == pytest.approx(account.throttled_s)


async def test_debt_survives_reconnects_until_paid(stand: Stand, node: Node) -> None:
    peer = await stand.peer()
    topic = (await peer.create()).topic_id
    await bound(node, produce_bytes=64 * KIB)
    began_s = time.monotonic()
    await peer.publish(topic, batch(bytes(128 * KIB)))
    await peer.close()
    stand.peers.remove(peer)
    again = await stand.peer(greet=False)
    hello = (await again.ask(hello=pb.Hello(version=PROTOCOL_VERSION))).envelope
    assert hello.throttle_ms > 0
    assert hello.hello_reply.produce_bytes == 64 * KIB
    for _ in range(2):
        await again.publish(topic, batch(b"early"))
    assert time.monotonic() - began_s > 0.9
    assert (await again.ask(metadata=pb.Metadata())).envelope.WhichOneof("kind") == "metadata_reply"


async def test_connections_share_a_rate(stand: Stand, node: Node) -> None:
    peers = [await stand.peer() for _ in range(100)]
    await bound(node, requests=50)
    began_s = time.monotonic()
    asked = [peer.post(topic_list=pb.TopicList(brief=True)) for peer in peers for _ in range(2)]
    for peer in peers:
        for number in asked[:2]:
            await peer.reply(number)
        del asked[:2]
    assert time.monotonic() - began_s > 2.5, "two hundred requests passed at once"
    await unbound(node)


async def test_closed_client_is_detected_while_throttled(stand: Stand, node: Node) -> None:
    peer, other = await stand.peer(), await elsewhere(stand)
    topic = (await other.create()).topic_id
    await bound(node, produce_bytes=4 * KIB)
    for _ in range(3):
        peer.post_publish(topic, batch(bytes(64 * KIB)))
    await settled(lambda: _waiting(node) == 1, "no connection was throttled")
    await peer.close()
    stand.peers.remove(peer)
    await settled(lambda: len(node.server.connections) == 1, "a client that is gone was kept")
    assert _waiting(node) == 0


def _waiting(node: Node) -> int:
    return sum(account.waiting for account in node.broker.accounts)


async def test_node_stops_with_throttled_clients(stand: Stand) -> None:
    node = await stand.start()
    peer, reader = await stand.peer(), await stand.peer()
    topic = (await peer.create()).topic_id
    await peer.publish(topic, batch(bytes(400 * KIB)))
    await bound(node, produce_bytes=4 * KIB, consume_bytes=4 * KIB)
    await reader.fetch(topic)
    reader.post_fetch(topic)
    for _ in range(3):
        peer.post_publish(topic, batch(bytes(64 * KIB)))
    await settled(lambda: _waiting(node) == 1, "no connection was throttled")
    began_s = time.monotonic()
    await stand.stop()
    assert time.monotonic() - began_s < 3


async def test_fetches_wait_for_the_consume_debt(stand: Stand, node: Node) -> None:
    peer, other = await stand.peer(), await elsewhere(stand)
    topic = (await peer.create()).topic_id
    await peer.publish(topic, batch(bytes(200 * KIB)))
    await bound(node, consume_bytes=100 * KIB)
    began_s = time.monotonic()
    first = (await peer.reply(peer.post_fetch(topic))).envelope
    assert 900 < first.throttle_ms < 1_100
    assert len(await peer.fetch(topic)) == 1
    assert time.monotonic() - began_s > 0.9
    assert len(await other.fetch(topic)) == 1
    waiting = peer.post_fetch(topic)
    await unbound(node)
    assert (await peer.reply(waiting)).envelope.fetch_reply.results[0].length > 200 * KIB


async def test_long_throttled_fetch_is_answered_empty(
    stand: Stand, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_broker.wire.quota_account.READ_WAIT_S", 0.1)
    peer = await stand.peer()
    topic = (await peer.create()).topic_id
    await peer.publish(topic, batch(bytes(200 * KIB)))
    await bound(node, consume_bytes=4 * KIB)
    await peer.fetch(topic)
    told = (await peer.reply(peer.post_fetch(topic, min_bytes=1, wait_ms=20_000))).envelope
    (result,) = told.fetch_reply.results
    assert (result.length, result.next_offset, result.high_watermark) == (0, 0, 1)
    assert told.throttle_ms > 30_000


async def test_throttled_search_for_a_newest_record_says_that_it_was_not_made(
    stand: Stand, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_account, "READ_WAIT_S", 0.1)
    peer = await stand.peer()
    topic = (await peer.create()).topic_id
    await peer.publish(topic, batch(bytes(200 * KIB)))
    entry = pb.FetchEntry(topic_id=topic, filter=pb.RecordFilter(key=b"absent"), newest=True)
    search = pb.Fetch(entries=[entry])
    assert (await peer.ask(fetch=search)).envelope.fetch_reply.results[0].searched
    await bound(node, consume_bytes=4 * KIB)
    await peer.fetch(topic)
    (result,) = (await peer.ask(fetch=search)).envelope.fetch_reply.results
    assert (result.searched, result.length, result.HasField("error")) == (False, 0, False)


async def test_throttled_fetch_is_answered_before_the_clients_timeout(stand: Stand, node: Node) -> None:
    peer = await stand.peer()
    topic = (await peer.create()).topic_id
    await peer.publish(topic, batch(bytes(200 * KIB)))
    await bound(node, consume_bytes=4 * KIB)
    await peer.fetch(topic)
    began_s = time.monotonic()
    told = (await peer.reply(peer.post_fetch(topic, min_bytes=1, wait_ms=100))).envelope
    assert time.monotonic() - began_s < 3, "far from the 5 s that it may take for who waits longer"
    assert quota_account.READ_WAIT_LEAST_S < owner_changes.READER_SILENCE_S
    assert told.fetch_reply.results[0].length == 0
    assert told.throttle_ms > 30_000


async def test_subscription_waits_for_the_consume_debt(stand: Stand, node: Node) -> None:
    peer = await stand.peer()
    topic = (await peer.create()).topic_id
    for _ in range(3):
        await peer.publish(topic, batch(bytes(600 * KIB)))
    await bound(node, consume_bytes=600 * KIB)
    began_s = time.monotonic()
    entries = [pb.SubscribeEntry(topic_id=topic)]
    await peer.ask(
        subscribe=pb.Subscribe(subscription_id=1, entries=entries, credit_records=100, credit_bytes=600 * KIB)
    )
    first = (await peer.event()).envelope
    peer.send_credit(1, records=0, size_bytes=1 << 30)
    for _ in range(2):
        await peer.event()
    assert time.monotonic() - began_s > 0.9
    assert first.message_event.record_count == 1
    await unbound(node)


async def test_callers_bytes_in_progress_are_limited_over_connections(stand: Stand, node: Node) -> None:
    peers = [await stand.peer() for _ in range(3)]
    topic = (await peers[0].create()).topic_id
    await bound(node, in_flight_bytes=64 * KIB)
    stand.disk.hold("pwritev")
    try:
        sent = [peer.post_publish(topic, batch(bytes(48 * KIB))) for peer in peers]
        more = [peer.post_publish(topic, batch(bytes(48 * KIB))) for peer in peers]
        await settled(lambda: _waiting(node) >= 2, "no connection was throttled")
        account = node.broker.accounts.of("address", "127.0.0.1/32")
        assert account is not None
        assert account.in_flight_bytes <= 4 * 50 * KIB
    finally:
        stand.disk.heal()
    for peer, *numbers in zip(peers, sent, more, strict=True):
        for number in numbers:
            await peer.reply(number)
    assert account.in_flight_bytes == 0


async def test_connection_beyond_the_connection_quota_is_refused(stand: Stand, node: Node) -> None:
    first = await stand.peer()
    await bound(node, connections=2)
    await stand.peer()
    third = await stand.peer(greet=False)
    error = await third.refused(hello=pb.Hello(version=PROTOCOL_VERSION))
    await third.closed()
    assert error.code == pb.QUOTA_EXCEEDED
    assert "its limit is 2" in error.message
    await elsewhere(stand)
    await first.close()
    await settled(lambda: len(node.server.connections) == 2, "a closed connection still counts")
    await stand.peer()
    await bound(node, connections=0)
    none = await stand.peer(greet=False)
    assert (await none.refused(hello=pb.Hello(version=PROTOCOL_VERSION))).code == pb.QUOTA_EXCEEDED


async def test_principals_are_metered_at_their_node_and_nodes_never(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        await admin.create_topic("t", partitions=3)
        key = await admin.security.create_key("ann")
        await admin.security.grant(AccessRule("ann", ("produce",), "topic", "t"))
        await admin.security.set_quota("default", Quota(produce_bytes=16 * KIB))
        await admin.security.set_quota("ann", Quota(connections=1))
        nodes = founded.nodes.values()
        for node in nodes:
            await settled(partial(_has_quota, node), "a node never heard of the quota")
        peer = await Peer.connect(founded.ports["c"])
        credentials = pb.Credentials(api_key=key.api_key)
        await peer.ask(hello=pb.Hello(version=PROTOCOL_VERSION, credentials=credentials))
        with pytest.raises(QuotaExceededError):
            async with Client(f"127.0.0.1:{founded.ports['c']}", api_key=key.api_key, request_timeout_s=1) as second:
                await second.connect()
        (topic,) = [topic for topic in await admin.topics() if topic.name == "t"]
        for partition in range(3):
            (result,) = await peer.publish(topic.topic_id, batch(bytes(8 * KIB)), partition=partition)
            assert not result.HasField("error"), result.error
        usages = [usage for usage in await admin.security.quota_usage() if usage.caller == "ann"]
        assert [(usage.node, usage.connections) for usage in usages] == [("c", 1)]
        assert usages[0].produce_debt_s > 0
        owing = [node.node_id for node in nodes if (at := node.broker.accounts.of("principal", "ann")) and at.owes]
        assert owing == ["c"]
        await peer.close()


def _has_quota(node: Node) -> bool:
    return node.broker.security.registry.quotas.of_subject("ann") is not None


async def test_client_that_respects_throttle_times_is_not_held(stand: Stand, node: Node) -> None:
    """It learns of the quota while it publishes to many partitions as fast as it can."""
    counted = Counted()
    async with Client(f"127.0.0.1:{node.port}", metrics=counted) as own:
        await own.create_topic("t", partitions=8)
        producer = own.producer("t", batch_bytes=16 * KIB)
        await producer.send(b"first")
        await bound(node, produce_bytes=200 * KIB)
        began_s = time.monotonic()
        for number in range(64):
            await producer.enqueue(bytes(8 * KIB), partition=number % 8)
            if number == 40:
                asked_s = time.monotonic()
                assert await own.topics()
                assert time.monotonic() - asked_s < 1, "what else is asked waited, too"
        await producer.flush()
        assert time.monotonic() - began_s > 1
        account = node.broker.accounts.of("address", "127.0.0.1/32")
        assert account is not None
        held_s = account.throttled_s
    delays = [delay_s for _, delay_s in counted.of("throttled") if isinstance(delay_s, float)]
    assert sum(delays) > 0.5
    assert held_s < 1, "the node had to stop reading for long"
    async with Client(f"127.0.0.1:{node.port}") as other:
        producer = other.producer("t", batch_bytes=16 * KIB)
        for number in range(48):
            await producer.enqueue(bytes(8 * KIB), partition=number % 8)
        await producer.flush()
        assert (await other.topics())[0].name == "t"
    assert account.throttled_s - held_s < 0.7, "a client that knows its rate is hardly throttled"


async def test_raised_quota_resumes_a_client(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "CHECK_INTERVAL_S", 0.2)
    async with Client(f"127.0.0.1:{node.port}") as own:
        await own.create_topic("t", partitions=1)
        producer = own.producer("t")
        for again in (partial(bound, node, produce_bytes=100_000 * KIB), partial(unbound, node)):
            await bound(node, produce_bytes=8 * KIB)
            await producer.send(bytes(400 * KIB))
            waiting = asyncio.ensure_future(producer.send(b"x"))
            await asyncio.sleep(1)
            assert not waiting.done()
            await again()
            await asyncio.wait_for(waiting, 10)


async def test_quota_of_an_unknown_principal_has_no_effect(node: Node) -> None:
    with pytest.raises(ProtocolError):
        await unbound(node)
    with suppress(ProtocolError):
        await bound(node, produce_bytes=0)
    assert node.broker.security.registry.quotas.of_subject(HERE) is None


async def test_flood_without_a_quota_does_not_delay_its_address(stand: Stand) -> None:
    node = await stand.start(caller_in_flight_bytes=256 * KIB)
    peer, other = await stand.peer(), await stand.peer()
    topic = (await peer.create()).topic_id
    stand.disk.hold("pwritev")
    try:
        sent = [peer.post_publish(topic, batch(bytes(64 * KIB))) for _ in range(40)]
        await settled(lambda: _waiting(node) == 1, "no connection was throttled")
        behind = other.post(metadata=pb.Metadata())
        single = other.post_publish(topic, batch(b"single"))
        await other.reply(behind)
        assert (await other.ask(metadata=pb.Metadata())).envelope.WhichOneof("kind") == "metadata_reply"
        account = node.broker.accounts.of("address", "127.0.0.1/32")
        assert account is not None
        assert account.in_flight_bytes < 8 * 70 * KIB
    finally:
        stand.disk.heal()
    for number in sent:
        await peer.reply(number)
    await other.reply(single)
    assert (account.in_flight_bytes, account.holds) == (0, False)


async def test_throttled_requests_time_out(node: Node) -> None:
    async with Client(f"127.0.0.1:{node.port}") as writer:
        await writer.create_topic("t", partitions=1)
        await bound(node, produce_bytes=4 * KIB)
        async with writer.producer("t", delivery_timeout_s=0.5) as producer:
            await producer.send(bytes(200 * KIB))
            began_s = time.monotonic()
            with pytest.raises(DeliveryTimeoutError):
                await producer.send(b"x")
            assert time.monotonic() - began_s < 10, "not when 49 s of debt are paid"
        await unbound(node)
