from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.linked import IDENTITY, Ear, Eye, ack, append, identity, join, make_links
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.node.node import Node
from tidelog_broker.wire.links import Link, Links
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB


@pytest.fixture
def eye() -> Eye:
    return Eye()


@pytest.fixture
def metrics() -> NodeMetrics:
    """Those of the node that calls."""
    return NodeMetrics()


@pytest.fixture
async def links(eye: Eye, metrics: NodeMetrics) -> AsyncIterator[Links]:
    """The links of the node "a", none yet."""
    links = make_links(events=eye, metrics=metrics)
    yield links
    await links.close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is taken and at which nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


def inside(links: Links, node_id: str) -> tuple[Link, asyncio.Transport]:
    """Return a link that stands and its transport, to do to it what only a broken node or a full network does."""
    link = links._peers[node_id].link
    assert link is not None
    assert link._transport is not None
    return link, link._transport


async def started(stand: Stand, ear: Ear, node_id: str = "b", **settings: Any) -> Node:
    node = await stand.start(**settings)
    join(node, ear, identity(node_id, incarnation=9))
    return node


async def test_nodes_exchange_messages_in_both_directions(tmp_path: Path) -> None:
    stands = [Stand(tmp_path / name) for name in "ab"]
    ears = [Ear(), Ear()]
    nodes = [await started(stand, ear, name) for stand, ear, name in zip(stands, ears, "ab", strict=True)]
    eyes = [Eye(), Eye()]
    both = [make_links(identity(name), events=eye) for name, eye in zip("ab", eyes, strict=True)]
    addresses = {name: ("127.0.0.1", node.port) for name, node in zip("ab", nodes, strict=True)}
    for links in both:
        links.update_peers(addresses)
    await eyes[0].saw("established b")
    await eyes[1].saw("established a")
    data = batch(b"x" * MIB)
    both[0].send("b", append(1), [memoryview(data)])
    both[1].send("a", ack(2))
    ((sender, _, batches),) = await ears[1].heard(1)
    assert sender == "a"
    assert [bytes(one.data) for one in batches] == [data]
    ((sender, message, _),) = await ears[0].heard(1)
    assert (sender, message) == ("b", ack(2))
    for links in both:
        await links.close()
    for stand in stands:
        await stand.close()


async def test_message_order_is_kept_for_all_sizes(stand: Stand, links: Links, eye: Eye) -> None:
    ear = Ear()
    node = await started(stand, ear)
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    small, large = batch(b"x"), batch(b"x" * MIB)
    for number in range(60):
        links.send(["b"], append(number), [memoryview(large if number % 7 == 0 else small)])
        links.send(["b"], ack(number))
        if number % 5 == 0:
            await asyncio.sleep(0)
    got = await ear.heard(120)
    assert [message.epoch for _, message, _ in got if isinstance(message, pb.AppendBatch)] == list(range(60))
    assert [message.end_offset for _, message, _ in got if isinstance(message, pb.ReplicationAck)] == list(range(60))


async def test_link_is_reestablished_after_a_restart(
    stand: Stand, links: Links, eye: Eye, metrics: NodeMetrics
) -> None:
    node = await started(stand, Ear())
    assert eye.incarnations == []
    port = node.port
    links.update_peers({"b": ("127.0.0.1", port)})
    await eye.saw("established b")
    await stand.crash()
    await eye.saw("lost b")
    await eye.saw("refused b", 2)
    assert links.connected == frozenset()
    assert "refused the connection" in (links.problem("b") or "")
    assert not links.refusals(), "it may come back"
    links.send(["b"], ack(1))  # lost
    ear = Ear()
    await started(stand, ear, port=port)
    await eye.saw("established b", 2)
    assert links.problem("b") is None
    links.send(["b"], ack(2))
    assert [message for _, message, _ in await ear.heard(1)] == [ack(2)]
    assert eye.incarnations == [9, 9]
    assert metrics.peer_connects.tally("b").value == 2
    assert metrics.peer_dropped_out.tally("b").value == 1


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (identity("b", secrets=ClusterSecrets(b"another")), "another cluster secret"),
        (identity("b", cluster_id=b"d" * 16), "a data directory cannot change its cluster"),
        (identity("a", incarnation=9), "two nodes have the id 'a'"),
        (IDENTITY, "connected to itself"),
        (identity("c"), "belongs to node 'c'"),
    ],
    ids=["secret", "cluster", "same id", "itself", "another node"],
)
async def test_link_failure_is_logged_once(
    stand: Stand, links: Links, caplog: pytest.LogCaptureFixture, other: Any, words: str
) -> None:
    caplog.set_level(logging.WARNING, "tidelog_broker.wire.links")
    node = await stand.start()
    peers = join(node, Ear(), other)
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await settled(lambda: node.broker.metrics.requests.tally("peer_hello").value >= 3, "it was not tried again")
    assert words in (links.problem("b") or "")
    assert links.refusals() == {("127.0.0.1", node.port): links.problem("b")}
    assert [words in record.message for record in caplog.records if record.name == "tidelog_broker.wire.links"] == [
        True
    ]
    assert not links.connected
    assert not peers.connected


async def test_connection_to_a_non_node_is_not_a_link(links: Links, eye: Eye) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read(1 << 16)
        writer.close()

    async with await asyncio.start_server(babble, "127.0.0.1", 0) as server:
        links.update_peers({"b": server.sockets[0].getsockname()})
        await settled(lambda: links.problem("b") is not None, "the problem was not reported")
        assert "violates the protocol" in (links.problem("b") or "")
        assert not eye.seen
        links.update_peers({})


async def test_refused_connection_is_reported_separately(links: Links, eye: Eye, closed_port: int) -> None:
    links.update_peers({"b": ("127.0.0.1", closed_port)})
    await eye.saw("refused b", 2)
    assert set(eye.seen) == {"refused b"}


async def test_unresolvable_name_is_not_a_refusal(links: Links, eye: Eye) -> None:
    links.update_peers({"b": ("no-such-host.invalid", 1)})
    await settled(lambda: links.problem("b") is not None, "the problem was not reported")
    assert not eye.seen


async def test_invalid_message_ends_an_established_link(stand: Stand, links: Links, eye: Eye) -> None:
    """The receiver closes; the link is made again."""
    ear = Ear()
    node = await started(stand, ear)
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    _, transport = inside(links, "b")
    transport.write(b"\xff" * 100)
    await eye.saw("lost b")
    await eye.saw("established b", 2)
    links.send(["b"], ack(1))
    await ear.heard(1)


async def test_links_follow_address_changes(
    stand: Stand, links: Links, eye: Eye, tmp_path: Path, closed_port: int
) -> None:
    node = await started(stand, Ear())
    links.update_peers({"a": ("127.0.0.1", node.port), "b": ("127.0.0.1", closed_port)})
    await eye.saw("refused b")
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    assert links.connected == {"b"}
    links.update_peers({"b": ("127.0.0.1", node.port)})  # unchanged address
    assert eye.seen["lost b"] == 0
    links.update_peers({})
    assert eye.seen["lost b"] == 1
    assert links.connected == frozenset()
    await settled(lambda: not node.server.connections, "the link was not closed")
    assert eye.seen["refused a"] == eye.seen["established a"] == 0, "a node does not call itself"


async def test_request_is_answered(stand: Stand, links: Links, eye: Eye) -> None:
    node = await started(stand, Ear())
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    created = await links.request("b", pb.Envelope(topic_create=pb.TopicCreate(name="t")), timeout_s=20)
    topic_id = created.envelope.topic_reply.topics[0].topic_id
    data = batch(b"x" * MIB)
    entry = pb.PublishEntry(topic_id=topic_id, length=len(data))
    publish = pb.Envelope(publish=pb.Publish(entries=[entry], forwarded=True))
    reply = await links.request("b", publish, [memoryview(data)], timeout_s=20)
    assert not reply.envelope.publish_reply.results[0].HasField("error")
    fetch = pb.Envelope(fetch=pb.Fetch(entries=[pb.FetchEntry(topic_id=topic_id)]))
    assert len((await links.request("b", fetch, timeout_s=20)).attachment) == len(data)
    with pytest.raises(ProtocolError) as caught:
        await links.request("b", pb.Envelope(topic_describe=pb.TopicDescribe(name="u")), timeout_s=20)
    assert caught.value.code == pb.UNKNOWN_TOPIC


async def test_one_way_message_with_a_correlation_id_is_refused(stand: Stand, links: Links, eye: Eye) -> None:
    node = await started(stand, ear := Ear())
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    with pytest.raises(ProtocolError, match="has no answer"):
        await links.request("b", pb.Envelope(replication_ack=pb.ReplicationAcks()), timeout_s=20)
    links.send(["b"], ack(1))
    await ear.heard(1)


async def test_request_without_a_link_is_definitely_not_sent(links: Links, closed_port: int) -> None:
    links.update_peers({"b": ("127.0.0.1", closed_port)})
    for node_id in ("b", "unknown"):
        with pytest.raises(ProtocolError) as caught:
            links.request(node_id, pb.Envelope(topic_list=pb.TopicList()), timeout_s=20)
        assert caught.value.retriable
        assert caught.value.definite


async def test_lost_link_fails_requests_with_unknown_outcome(stand: Stand, links: Links, eye: Eye) -> None:
    node = await started(stand, Ear())
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    created = await links.request("b", pb.Envelope(topic_create=pb.TopicCreate(name="t")), timeout_s=20)
    entry = pb.FetchEntry(topic_id=created.envelope.topic_reply.topics[0].topic_id)
    waiting = links.request(
        "b", pb.Envelope(fetch=pb.Fetch(entries=[entry], wait_ms=20_000, min_bytes=1)), timeout_s=20
    )
    await settled(lambda: node.broker.metrics.requests.tally("fetch").value == 1, "the request did not arrive")
    await stand.crash()
    with pytest.raises(ProtocolError, match="broke") as caught:
        await waiting
    assert caught.value.retriable
    assert not caught.value.definite


async def test_messages_queued_before_close_arrive(
    stand: Stand, links: Links, eye: Eye, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog_broker.wire.links.FINISH_TIMEOUT_S", 20)  # a test is in no hurry
    ear = Ear()
    node = await started(stand, ear)
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    link, transport = inside(links, "b")
    # Else the kernel would take all of it at once, and nothing would be left to wait for.
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
    for number in range(20):  # small enough to be verified at once; pending verifications end with a connection
        links.send(["b"], append(number), [memoryview(batch(b"x" * (MIB // 8)))])
    link.flush()
    assert link.waiting_bytes > MIB
    await links.close()
    assert len(await ear.heard(20)) == 20
    links.update_peers({"b": ("127.0.0.1", node.port)})  # too late
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("link to")]


async def test_node_at_an_address_proves_which_start_answers(stand: Stand, links: Links, closed_port: int) -> None:
    node = await started(stand, Ear())
    address = ("127.0.0.1", node.port)
    assert await links.running_incarnation("b", address, timeout_s=20) == 9
    assert await links.running_incarnation("c", address, timeout_s=20) == 0, "another node answers"
    assert await links.running_incarnation("b", ("127.0.0.1", closed_port), timeout_s=20) == 0
    assert node.broker.peers is not None
    assert not node.broker.peers.connected, "a query does not count as a node's connection"


async def test_absent_node_is_one_with_a_closed_port(stand: Stand, links: Links, eye: Eye, closed_port: int) -> None:
    node = await started(stand, Ear())
    links.update_peers({"b": ("127.0.0.1", node.port), "c": ("127.0.0.1", closed_port)})
    await eye.saw("established b")
    await eye.saw("refused c")
    assert links.is_absent("c")
    assert not links.is_absent("b")
    assert not links.is_absent("d")


async def test_link_is_made_again_when_another_start_of_its_node_was_reported(
    stand: Stand, links: Links, eye: Eye
) -> None:
    node = await started(stand, Ear())
    links.update_peers({"b": ("127.0.0.1", node.port)})
    await eye.saw("established b")
    links.reconnect("b")
    await eye.saw("established b", times=2)
