from __future__ import annotations

from tests.broker.stand import Stand

from tidelog_broker.core.ports import Plan
from tidelog_broker.node import Node
from tidelog_proto import broker_pb2 as pb


async def test_a_node_that_stands_alone_plans_with_itself(stand: Stand, node: Node) -> None:
    topic = await (await stand.peer()).create(flush=pb.NEVER)
    cluster = node.cluster
    assert cluster.plan((topic.topic_id, 0), pb.EpochDescriptor()) == Plan(node.node_id, (node.node_id,), 1, pb.NEVER)
    assert cluster.alive(node.node_id)
    assert not cluster.alive("another")
    assert cluster.incarnation(node.node_id) == node.incarnation
    assert cluster.address(node.node_id) == (node.settings.advertised_host, node.port)
    assert cluster.address("another") is None
    assert [one.node_id for one in cluster.nodes()] == [node.node_id]
