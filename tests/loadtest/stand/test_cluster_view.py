from __future__ import annotations

import pytest

from tidelog import Client
from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.stand import cluster_view as views
from tidelog_loadtest.stand.cluster_view import settled, unsettled, view_of
from tidelog_proto import broker_pb2 as pb


def _status(
    *, alive: bool = True, owner: str = "a", streaming: tuple[bool, ...] = (True, True)
) -> pb.ClusterStatusReply:
    nodes = [pb.NodeStatus(node=pb.NodeInfo(node_id=each, alive=True), state="running") for each in "ab"]
    nodes.append(pb.NodeStatus(node=pb.NodeInfo(node_id="c", alive=alive), state="running" if alive else "no answer"))
    replicas = [pb.ReplicaInfo(node_id=each, streaming=on) for each, on in zip("bc", streaming, strict=False)]
    partition = pb.PartitionInfo(partition=4, owner=owner, placement="abc", replicas=replicas, state="active")
    return pb.ClusterStatusReply(nodes=nodes, topics=[pb.TopicInfo(name="t", partitions=[partition])])


def test_a_healthy_cluster_has_no_description() -> None:
    assert unsettled(_status(), "t", 3) == ""


@pytest.mark.parametrize(
    ("status", "topic", "copies", "missing"),
    [
        (_status(alive=False), "t", 3, "nodes that do not run: c"),
        (_status(), "other", 3, "the node does not know the topic other"),
        (_status(owner=""), "t", 3, "1 partitions not in sync, for example 4"),
        (_status(), "t", 4, "replicas a, b, c"),
        (_status(streaming=(True, False)), "t", 3, "in sync: b"),
        (_status(streaming=(True,)), "t", 3, "in sync: b"),
    ],
    ids=["node-away", "no-topic", "no-owner", "too-few-copies", "catching-up", "not-seen"],
)
def test_a_missing_part_is_described(status: pb.ClusterStatusReply, topic: str, copies: int, missing: str) -> None:
    assert missing in unsettled(status, topic, copies)


@pytest.mark.e2e
async def test_one_node_is_queried(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.create_topic("seen", partitions=3)
    node = (await client.cluster_status()).nodes[0]
    async with view_of((node.host, node.port)) as view:
        assert [each.owner for each in (await view.routes("seen")).partitions] == [node.node_id] * 3
        await settled(view, "seen", copies=1, partitions=3)
        monkeypatch.setattr(views, "SETTLE_S", 1.0)
        with pytest.raises(CommandFailed, match="3 partitions not in sync"):
            await settled(view, "seen", copies=2, partitions=3)
