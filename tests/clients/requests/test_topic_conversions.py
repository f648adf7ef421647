from __future__ import annotations

import pytest

from tidelog.errors import UnknownTopicError
from tidelog.requests import topic_conversions
from tidelog_proto import broker_pb2 as pb


def test_a_described_topic_has_its_partitions_in_order() -> None:
    info = pb.TopicInfo(name="t", topic_id=b"i" * 16, config=pb.TopicConfig(flush=pb.INTERVAL, flush_interval_ms=5))
    for partition in (1, 0):
        info.partitions.add(partition=partition, owner="n", high_watermark=partition + 10, placement=["n"])
    topic = topic_conversions.topic_of(info)
    assert [(each.partition, each.high_watermark) for each in topic.partitions] == [(0, 10), (1, 11)]
    assert (topic.flush, topic.flush_interval_ms, topic.partition_count) == ("interval", 5, 2)
    with pytest.raises(UnknownTopicError):
        topic_conversions.topic_of(pb.TopicInfo(name="t", error=pb.Error(code=pb.UNKNOWN_TOPIC)))


def test_status() -> None:
    reply = pb.ClusterStatusReply(cluster_id=b"c" * 16)
    reply.nodes.add(node=pb.NodeInfo(node_id="n", host="h", port=1, alive=True), state="running", uptime_ms=5)
    status = topic_conversions.status_of(reply)
    assert (status.nodes[0].node_id, status.nodes[0].state, status.nodes[0].uptime_ms) == ("n", "running", 5)
    assert status.cluster_id == b"c" * 16
