from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.broker.founded import Founded
from tests.broker.rebalance.test_mover import TOPIC, World
from tests.broker.stand import Stand

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.node.node import Node
from tidelog_broker.server.server import HANDLERS
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import KIB


async def test_node_without_a_cluster_plans_with_itself(stand: Stand, node: Node) -> None:
    topic = await (await stand.peer()).create(flush=pb.NEVER)
    cluster = node.broker.cluster
    assert cluster.plan((topic.topic_id, 0), pb.EpochDescriptor()) == Plan(node.node_id, (node.node_id,), 1, pb.NEVER)
    assert cluster.alive(node.node_id)
    assert not cluster.alive("another")
    assert cluster.incarnation(node.node_id) == node.incarnation
    assert cluster.address(node.node_id) == (node.settings.advertised_host, node.port)
    assert cluster.address("another") is None
    assert [one.node_id for one in cluster.nodes()] == [node.node_id]


async def test_history_is_fetched_at_the_configured_rate(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("tidelog_broker.cluster.cluster_view.time", SimpleNamespace(monotonic=lambda: now_s))
    node = await stand.start(fill_bytes_per_s=1000 * KIB)
    assert node.broker.cluster.backfill_wait_ms(5000 * KIB) == 0, (
        "a second's worth is free, and its last range may be a large one"
    )
    assert node.broker.cluster.backfill_wait_ms(KIB) == 4000
    now_s += 3
    assert node.broker.cluster.backfill_wait_ms(1) == 1001


async def test_node_that_disconnects_is_asked_and_does_not_answer(founded: Founded) -> None:
    """Its link is closed already and still counts as connected: the others are asked nevertheless."""
    await founded.found()
    await founded.settled()
    cluster = founded.nodes["a"].broker.cluster
    assert cluster._links is not None
    peer = cluster._links._peers["b"]
    assert peer.link is not None
    asked = pb.Envelope(metadata=pb.Metadata())
    assert len(await cluster.ask_others(asked, timeout_s=10)) == 2
    peer.link.close("a test says so")
    assert "b" in cluster.linked, "the loss is detected in the next turn of the loop"
    (answer,) = await cluster.ask_others(asked, timeout_s=10)
    assert answer.WhichOneof("kind") == "metadata_reply"


async def test_drain_keeps_the_quorum_of_a_partition() -> None:
    """The dead would fill up the next epoch, of which only one node would be there."""
    world = World(names="abcd")
    config = pb.TopicConfig(replication_factor=3)
    world.topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=2, config=config))
    active = pb.EpochDescriptor(owner="a", placement="abd", ack_quorum=2, flush=pb.ALWAYS)
    world.drain("d")
    world.die("c")

    def plans() -> list[set[str]]:
        found = [world.cluster.placement_plan((TOPIC, index), active) for index in range(10)]
        return [set(plan.placement) for plan in found if plan is not None]

    assert set("abc") in plans(), "two of three are enough"
    world.die("b")
    assert all({"a", "d"} <= placement for placement in plans())


async def test_build_without_incarnations_knows_none(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start does not wait for it to answer otherwise."""
    await founded.found()
    await founded.settled()
    monkeypatch.delitem(HANDLERS, "incarnations")
    cluster = founded.nodes["a"].broker.cluster
    assert await cluster.exchange_incarnations("b", pb.Incarnations(), timeout_s=20) == pb.IncarnationsReply()
