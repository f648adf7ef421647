from __future__ import annotations

import pytest

from tidelog_broker.rebalance.status_merge import merge_topic, removal_fault, told_topics
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
    """Return what a node tells of `t/0`, which `b` owns."""
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


def test_the_owners_word_counts_and_each_copys_own_about_what_it_lacks() -> None:
    own = told("a", epoch=2, placement="ab", hw=1).topics[0]
    others = [told("c", hw=5, missing=7), told("b", hw=6), told("d", epoch=1, hw=9, missing=2)]
    merge_topic("a", own, told_topics(others)[own.topic_id])
    (partition,) = own.partitions
    assert (partition.epoch, partition.high_watermark) == (3, 6)
    assert {one.node_id: (one.missing_epochs, one.missing_records) for one in partition.replicas} == {
        "b": (0, 0),
        "c": (1, 7),
        "d": (1, 2),
    }
    own = told("a", placement="abc", hw=1).topics[0]
    merge_topic("a", own, told_topics([told("b", placement="abc", hw=6)])[own.topic_id])
    assert own.partitions[0].high_watermark == 6, "the owner knows better than this node's own copy"


def test_who_has_the_log_open_is_believed_before_an_owner_who_has_not() -> None:
    own = told("b", state="idle").topics[0]
    merge_topic("b", own, told_topics([told("c", hw=5), told("x", state="away")])[own.topic_id])
    assert (own.partitions[0].high_watermark, own.partitions[0].state) == (5, "active")
    own = told("c", epoch=2, hw=5).topics[0]
    merge_topic("c", own, told_topics([told("b", epoch=3, state="idle")])[own.topic_id])
    assert own.partitions[0].epoch == 3, "a newer epoch counts, open or not"


def test_a_copy_that_is_in_doubt_says_so_itself_and_not_its_owner() -> None:
    own = told("a").topics[0]
    merge_topic(
        "a", own, told_topics([told("b"), told("c", missing=7, copy="damaged"), told("d", copy="short")])[b"t" * 16]
    )
    assert [(one.missing_epochs, one.missing_records, one.copy_fault) for one in own.partitions[0].replicas] == [
        (0, 0, ""),
        (2, 7, "damaged"),
        (1, 0, "short"),
    ]


def test_without_the_owner_whoever_stores_it_is_believed_before_who_does_not() -> None:
    own = told("a", hw=1).topics[0]
    merge_topic("a", own, told_topics([told("c", hw=5)])[own.topic_id])
    assert own.partitions[0].high_watermark == 5


def test_a_node_may_go_when_all_copies_elsewhere_are_whole() -> None:
    assert fault(told("b"), told("c"), told("d"), told("a", state="away")) == ""


def test_a_node_stays_while_history_is_on_its_way_to_another() -> None:
    message = fault(told("b"), told("c"), told("d", missing=1000))
    assert "'d' still fetches 1,000 older records of t/0" in message
    assert "'a'" in message


def test_one_that_does_not_answer_holds_nobody_up_and_too_few_that_do_hold_all_up() -> None:
    assert fault(told("b"), told("c")) == ""
    message = fault(told("b"))
    assert "only 1 of 3" in message
    assert "'c', 'd'" in message


def test_copies_of_which_nothing_is_known_do_not_count() -> None:
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


def test_a_copy_that_has_nowhere_to_go_leaves_with_its_node() -> None:
    assert fault(told("b", placement="ab"), told("a", placement="ab")) == ""
    assert "only 0 of 1" in fault(told("a", placement="ab"))


def test_what_only_the_node_and_the_owner_have_holds_it_up_where_its_copy_goes_nowhere() -> None:
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


def test_the_only_copy_does_not_go() -> None:
    assert "only copy of t/0" in fault(told("b", placement="a"), told("a", placement="a"))
