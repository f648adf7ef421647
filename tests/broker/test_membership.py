from __future__ import annotations

import os

import pytest
from tests.broker.founded import Founded

from tidelog_broker.core.roster import IdentityConflict
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.membership import IdentityError
from tidelog_proto import broker_pb2 as pb


async def test_founders_find_each_other_and_register(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    for node in founded.nodes.values():
        assert node.dir.admitted
        assert [record.node_id for record in node.nodes.live()] == ["a", "b", "c"]
        assert all(record.revision == 1 for record in node.nodes.live()), "each was written once"
    reply = (await (await founded.peer("b")).ask(metadata=pb.Metadata())).envelope.metadata_reply
    assert [(info.node_id, info.port, info.alive) for info in reply.nodes] == [
        (name, founded.nodes[name].port, True) for name in "abc"
    ]


async def test_two_of_three_founders_are_enough_and_the_third_comes_later(founded: Founded) -> None:
    await founded.found("a", "b")
    await founded.settled()
    await founded.start("c")
    await founded.settled()
    assert founded.owner(META_KEY, "c") in {"a", "b"}


async def test_a_founder_with_an_empty_disk_is_found_out_and_replaced(founded: Founded) -> None:
    """It has forgotten what it promised: under its old id it must not come back."""
    await founded.found()
    await founded.settled()
    await founded.stop("b")
    with pytest.raises(IdentityError, match="--replace"):
        await founded.start("b", data="empty")
    node = await founded.start("b", data="other", replaces=True)
    assert node.node_id.startswith("node-")
    await founded.settled()
    assert [record.node_id for record in founded.nodes["a"].nodes.live()] == sorted(["a", "b", "c", node.node_id])
    peer = await founded.peer("a")
    await peer.ask(cluster_change=pb.ClusterChange(drain="b"))
    await founded.until(
        lambda: all(key == META_KEY for key in founded.nodes["a"].stored_by("b")), "the dead one is still counted on"
    )
    reply = await peer.ask(cluster_change=pb.ClusterChange(remove="b"))
    assert reply.envelope.HasField("cluster_change_reply"), reply.envelope
    await founded.until(lambda: not founded.nodes["c"].stored_by("b"), "it still has its place in __meta")


async def test_a_joiner_needs_nothing_but_a_seed(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    joiner = await founded.join("d", "c")
    assert joiner.cluster_id == founded.nodes["a"].cluster_id
    await founded.settled()
    topic = await (await founded.peer("a")).create("later", replication_factor=4)
    assert "d" in topic.partitions[0].placement
    await founded.stop("d")
    await founded.join("d", "a")
    await founded.settled()
    assert joiner.incarnation < founded.nodes["d"].incarnation


async def test_a_node_whose_id_another_process_uses_stops_and_says_so(
    founded: Founded, caplog: pytest.LogCaptureFixture
) -> None:
    await founded.found()
    await founded.settled()
    node = founded.nodes["c"]
    assert node.membership is not None
    node.membership._on_gossip(IdentityConflict("c", node.incarnation, node.incarnation + 1))
    assert await founded.stop("c") == os.EX_CONFIG
    assert "another process uses the node id 'c'" in caplog.text
