from __future__ import annotations

from tidelog.admin.topic_figures import FigureSums
from tidelog.model import TopicFigures
from tidelog_proto import broker_pb2 as pb


def partition(**told: object) -> pb.PartitionInfo:
    return pb.PartitionInfo(**({"state": "active"} | told))  # type: ignore[arg-type]


def figures(*pages: list[pb.TopicInfo]) -> dict[str, TopicFigures]:
    sums = FigureSums()
    for page in pages:
        sums.add(page)
    return sums.figures()


def test_sums_cover_all_pages_of_a_topic() -> None:
    first = partition(log_start_offset=10, high_watermark=30, size_bytes=5)
    second = partition(high_watermark=4, size_bytes=6)
    topic = pb.TopicInfo(name="t", topic_id=b"1")
    found = figures(
        [pb.TopicInfo(name="t", topic_id=b"1", partitions=[first]), pb.TopicInfo(name="u", topic_id=b"2")],
        [pb.TopicInfo(name="t", topic_id=b"1", partitions=[second])],
    )
    assert set(found) == {"t", "u"}
    assert found["t"] == TopicFigures(topic.topic_id, 2, 24, 34, 11)
    assert found["u"] == TopicFigures(b"2")


def test_topic_recreated_between_pages_is_counted_alone() -> None:
    old = pb.TopicInfo(name="t", topic_id=b"1", partitions=[partition(high_watermark=9)])
    new = pb.TopicInfo(name="t", topic_id=b"2", partitions=[partition(high_watermark=1)])
    assert figures([old], [new])["t"] == TopicFigures(b"2", 1, 1, 1)


def test_idle_partition_is_counted_without_figures() -> None:
    found = figures([pb.TopicInfo(name="t", partitions=[partition(state="idle"), partition(high_watermark=2)])])["t"]
    assert (found.partitions, found.idle, found.records, found.unavailable) == (2, 1, 2, 0)


def test_partitions_that_accept_no_records_are_unavailable() -> None:
    states = ["active", "sealed", "no quorum", "limbo", "failed", "no owner", "away"]
    found = figures([pb.TopicInfo(name="t", partitions=[partition(state=state) for state in states])])["t"]
    assert found.unavailable == 5


def test_partitions_with_incomplete_replica_are_under_replicated() -> None:
    def with_replica(**told: object) -> pb.PartitionInfo:
        replica = pb.ReplicaInfo(**({"streaming": True} | told))  # type: ignore[arg-type]
        return partition(replicas=[pb.ReplicaInfo(streaming=True), replica])

    partitions = [
        with_replica(),
        with_replica(lag=5),
        with_replica(streaming=False),
        with_replica(missing_epochs=1),
        with_replica(copy_fault="damaged"),
    ]
    found = figures([pb.TopicInfo(name="t", partitions=partitions)])["t"]
    assert found.under_replicated == 3


def status_of(node_id: str, *, alive: bool = True) -> pb.NodeStatus:
    return pb.NodeStatus(node=pb.NodeInfo(node_id=node_id, alive=alive))


def test_partitions_with_a_copy_on_a_dead_node_or_too_few_copies_are_under_replicated() -> None:
    copies = [pb.ReplicaInfo(node_id=each, streaming=True) for each in "abc"]
    whole = partition(placement=["a", "b", "c"], replicas=copies)
    short = partition(placement=["a", "b"], replicas=copies[:2])
    elsewhere = partition(placement=["a", "b", "d"], state="idle")
    topic = pb.TopicInfo(name="t", partitions=[whole, short, elsewhere])
    topic.config.replication_factor = 3
    for dead, lacking in (("", 1), ("a", 3), ("c", 2), ("d", 2)):
        sums = FigureSums()
        sums.note_nodes(status_of(each, alive=each != dead) for each in "abcd")
        sums.add([topic])
        assert sums.figures()["t"].under_replicated == lacking, dead


def test_a_cluster_with_fewer_nodes_than_the_replication_factor_lacks_no_copy() -> None:
    topic = pb.TopicInfo(name="t", partitions=[partition(placement=["a"])])
    topic.config.replication_factor = 3
    sums = FigureSums()
    sums.note_nodes([status_of("a")])
    sums.add([topic])
    assert sums.figures()["t"].under_replicated == 0
