from __future__ import annotations

import pytest

from tidelog_broker.rebalance.status_merge import merge_topic, removal_fault, reports_by_topic
from tidelog_proto import broker_pb2 as pb


def told(
    node: str,
    *,
    epoch: int = 3,
    placement: str = "bcd",
    hw: int = 0,
    missing: int = 0,
    state: str = "active",
    copy: str = "",
) -> pb.ClusterStatusReply:
    """Return a node's status of `t/0`, which `b` owns."""
    info = pb.PartitionInfo(
        owner="b",
        epoch=epoch,
        placement=placement,
        high_watermark=hw,
        state=state,
        missing_epochs=int(missing > 0),
        missing_records=missing,
        copy_fault=copy,
    )
    if node == "b":
        info.replicas.extend(pb.ReplicaInfo(node_id=one, streaming=True) for one in placement)
    topic = pb.TopicInfo(name="t", topic_id=b"t" * 16, partitions=[info])
    return pb.ClusterStatusReply(nodes=[pb.NodeStatus(node=pb.NodeInfo(node_id=node))], topics=[topic])


def fault(*replies: pb.ClusterStatusReply, node: str = "a") -> str:
    return removal_fault(node, {reply.nodes[0].node.node_id: reply for reply in replies})


def test_owners_report_counts_with_each_copys_own_missing_history() -> None:
    own = told("a", epoch=2, placement="ab", hw=1).topics[0]
    others = [told("c", hw=5, missing=7), told("b", hw=6), told("d", epoch=1, hw=9, missing=2)]
    merge_topic("a", own, reports_by_topic(others)[own.topic_id])
    (partition,) = own.partitions
    assert (partition.epoch, partition.high_watermark) == (3, 6)
    assert {one.node_id: (one.missing_epochs, one.missing_records) for one in partition.replicas} == {
        "b": (0, 0),
        "c": (1, 7),
        "d": (1, 2),
    }
    own = told("a", placement="abc", hw=1).topics[0]
    merge_topic("a", own, reports_by_topic([told("b", placement="abc", hw=6)])[own.topic_id])
    assert own.partitions[0].high_watermark == 6, "the owner knows better than this node's own copy"


def test_report_of_an_open_log_precedes_an_owner_with_a_closed_one() -> None:
    own = told("b", state="idle").topics[0]
    merge_topic("b", own, reports_by_topic([told("c", hw=5), told("x", state="away")])[own.topic_id])
    assert (own.partitions[0].high_watermark, own.partitions[0].state) == (5, "active")
    own = told("c", epoch=2, hw=5).topics[0]
    merge_topic("c", own, reports_by_topic([told("b", epoch=3, state="idle")])[own.topic_id])
    assert own.partitions[0].epoch == 3, "a newer epoch counts, open or not"


def test_doubt_of_a_copy_is_reported_by_its_own_node() -> None:
    own = told("a").topics[0]
    merge_topic(
        "a",
        own,
        reports_by_topic([told("b"), told("c", missing=7, copy="damaged"), told("d", copy="short")])[b"t" * 16],
    )
    assert [(one.missing_epochs, one.missing_records, one.copy_fault) for one in own.partitions[0].replicas] == [
        (0, 0, ""),
        (2, 7, "damaged"),
        (1, 0, "short"),
    ]


def test_report_of_a_replica_precedes_others_without_the_owner() -> None:
    own = told("a", hw=1).topics[0]
    merge_topic("a", own, reports_by_topic([told("c", hw=5)])[own.topic_id])
    assert own.partitions[0].high_watermark == 5


def test_node_may_be_removed_when_all_other_copies_are_complete() -> None:
    assert fault(told("b"), told("c"), told("d"), told("a", state="away")) == ""


def test_removal_is_refused_while_another_node_fetches_history() -> None:
    message = fault(told("b"), told("c"), told("d", missing=1000))
    assert "'d' still fetches 1,000 older records of t/0" in message
    assert "'a'" in message


def test_silent_node_does_not_delay_removal_but_too_few_answers_do() -> None:
    assert fault(told("b"), told("c")) == ""
    message = fault(told("b"))
    assert "only 1 of 3" in message
    assert "'c', 'd'" in message


def test_copies_without_a_report_do_not_count() -> None:
    for unknown in (told("c", epoch=2), told("c", state="away"), told("c", state="limbo")):
        assert "only 1 of 3" in fault(told("b"), unknown)


@pytest.mark.parametrize("copy", ["short", "damaged", "limbo", "failed"])
def test_copies_in_doubt_do_not_count(copy: str) -> None:
    """Seen from the owner all is well, and yet the node may be the last to have everything."""
    message = fault(told("b"), told("c", copy=copy), told("d", copy=copy))
    assert "only 1 of 3" in message
    assert f"wait for 'c' ({copy}), 'd' ({copy})" in message
    assert fault(told("b"), told("c"), told("d", copy=copy)) == "", "most are whole"
    assert "only 0 of 1" in fault(told("b", placement="ab", copy=copy), told("a", placement="ab"))


def test_copy_without_another_node_does_not_delay_removal() -> None:
    assert fault(told("b", placement="ab"), told("a", placement="ab")) == ""
    assert "only 0 of 1" in fault(told("a", placement="ab"))


def test_records_only_on_the_node_and_the_owner_delay_removal() -> None:
    owner = told("b", placement="abc", hw=5)
    replicas = owner.topics[0].partitions[0].replicas
    held = {"a": 5, "b": 5, "c": 4}
    for replica in replicas:
        replica.held_offset = held[replica.node_id]
    others = told("a", placement="abc"), told("c", placement="abc")
    message = fault(owner, *others)
    assert "only 1 of 2" in message
    assert "'c'" in message
    replicas[2].held_offset = 5
    assert fault(owner, *others) == ""
    assert "only 0 of 2" in fault(*others), "the owner has not told"


def test_only_copy_is_not_removed() -> None:
    assert "only copy of t/0" in fault(told("b", placement="a"), told("a", placement="a"))
