from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from tests.broker.founded import Founded

from tidelog_broker.core.membership import connectivity
from tidelog_broker.core.membership.member_states import IdentityConflict
from tidelog_broker.core.peer_auth import Identity
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node.directory_admission import IdentityError
from tidelog_broker.wire.handshake_incarnations import HandshakeIncarnations
from tidelog_broker.wire.links import Link
from tidelog_proto import broker_pb2 as pb


async def test_founders_connect_and_register(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    for node in founded.nodes.values():
        assert node.dir.admitted
        assert [record.node_id for record in node.broker.nodes.live()] == ["a", "b", "c"]
        assert all(record.revision == 1 for record in node.broker.nodes.live()), "each was written once"
    reply = (await (await founded.peer("b")).ask(metadata=pb.Metadata())).envelope.metadata_reply
    assert [(info.node_id, info.port, info.alive) for info in reply.nodes] == [
        (name, founded.nodes[name].port, True) for name in "abc"
    ]


async def test_gossip_port_in_use_is_detected_before_the_start(tmp_path: Path) -> None:
    founded = Founded(tmp_path, ("a",))
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", founded.ports["a"]))
        for _ in range(2):
            with pytest.raises(OSError, match="for gossip: Address already in use"):
                await founded.start("a")
        assert not json.loads((tmp_path / "a" / "node.json").read_text())["admitted"]
    await founded.found()
    await founded.settled()
    await founded.close()


async def test_founder_with_an_empty_disk_is_refused_and_replaced(founded: Founded) -> None:
    """It has lost its promises: it must not rejoin under its old id."""
    await founded.found()
    await founded.settled()
    await founded.stop("b")
    with pytest.raises(IdentityError, match="--replace"):
        await founded.start("b", data="empty")
    node = await founded.start("b", data="other", replaces=True)
    assert node.node_id.startswith("node-")
    await founded.settled()
    assert [record.node_id for record in founded.nodes["a"].broker.nodes.live()] == sorted(
        ["a", "b", "c", node.node_id]
    )
    peer = await founded.peer("a")
    await peer.ask(cluster_change=pb.ClusterChange(drain="b"))
    await founded.until(
        lambda: all(key == META_KEY for key in founded.nodes["a"].broker.description.stored_by("b")),
        "the dead one is still counted on",
    )
    await founded.remove(peer, "b")
    await founded.until(
        lambda: not founded.nodes["c"].broker.description.stored_by("b"), "it still has its place in __meta"
    )


@pytest.mark.parametrize("runs", [True, False], ids=["while it runs", "while it is away"])
async def test_removed_node_stops(founded: Founded, runs: bool) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    await peer.ask(cluster_change=pb.ClusterChange(drain="c"))
    await founded.until(lambda: founded.owner(META_KEY, "a") in {"a", "b"}, "it keeps __meta")
    if not runs:
        await founded.stop("c")
    await founded.remove(peer, "c")
    await founded.until(
        lambda: not founded.nodes["a"].broker.incarnations.offer("c").known, "its incarnations are kept"
    )
    if not runs:
        await founded.start("c")
    removed = founded.nodes["c"]
    await founded.until(lambda: removed.lifecycle.health.state == "failed", "the removed node continues")
    assert await founded.stop("c") == os.EX_CONFIG
    await founded.until(lambda: founded.nodes["a"].broker.cluster.linked == {"b"}, "it is still called")


async def test_joiner_needs_only_a_seed(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    joiner = await founded.join("d", "c")
    assert joiner.broker.cluster_id == founded.nodes["a"].broker.cluster_id
    await founded.settled()
    topic = await (await founded.peer("a")).create("later", replication_factor=4)
    assert "d" in topic.partitions[0].placement
    await founded.stop("d")
    await founded.join("d", "a")
    await founded.settled()
    assert joiner.incarnation < founded.nodes["d"].incarnation


async def test_node_with_a_duplicate_id_stops_with_a_message(
    founded: Founded, caplog: pytest.LogCaptureFixture
) -> None:
    await founded.found()
    await founded.settled()
    node = founded.nodes["c"]
    assert node.membership is not None
    node.membership._on_gossip(IdentityConflict("c", node.incarnation, node.incarnation + 1))
    assert await founded.stop("c") == os.EX_CONFIG
    assert "another process uses node id 'c'" in caplog.text


async def test_owner_without_connections_is_replaced(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter passes UDP and drops TCP. After its removal the former owner learns of the takeover."""
    monkeypatch.setattr(connectivity, "UNREACHABLE_MS", 300)
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await founded.spread(peer, 12)
    key = next((topic.topic_id, one.partition) for one in topic.partitions if one.owner == "b")
    await founded.publish(peer, key[0], b"first", partition=key[1])
    with monkeypatch.context() as patched:
        greet = Link.greet

        async def filtered(
            link: Link,
            own: Identity,
            *,
            called: str,
            timeout_s: float,
            incarnations: HandshakeIncarnations | None,
        ) -> int:
            if "b" in {own.node_id, called}:
                raise TimeoutError
            return await greet(link, own, called=called, timeout_s=timeout_s, incarnations=incarnations)

        patched.setattr(Link, "greet", filtered)
        for name, node in founded.nodes.items():
            for connection in list(node.server.connections):
                if connection.peer_id is not None and "b" in {name, connection.peer_id}:
                    connection.cut_off()
        await founded.until(lambda: founded.owner(key, "a") in {"a", "c"}, "the failure was not detected")
        assert founded.nodes["a"].broker.cluster.membership("b") in {"alive", "suspect"}, (
            "gossip believes that it lives"
        )
        assert (await founded.publish(peer, key[0], b"second", partition=key[1])).base_offset == 1
    await founded.until(lambda: founded.owner(key, "b") in {"a", "c"}, "the former owner never learns of it")
    await founded.until(lambda: founded.nodes["a"].broker.cluster.alive("b"), "it is cut off for ever")
