from __future__ import annotations

from tidelog_broker.cluster.routes import Route, Routes
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_proto import broker_pb2 as pb

TOPIC = b"t" * 16
FIRST = pb.EpochDescriptor(epoch=0, owner="a", placement=["a", "b"], ack_quorum=1)


def told(epoch: int, owner: str) -> pb.TopicInfo:
    partition = pb.PartitionInfo(partition=0, owner=owner, epoch=epoch, placement=[owner, "z"])
    return pb.TopicInfo(name="t", topic_id=TOPIC, partitions=[partition])


def make(local: dict[PartitionKey, Route]) -> Routes:
    topics = TopicRegistry()
    topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=1, first_epochs=[FIRST]))
    return Routes(topics, local.get)


def test_newest_known_epoch_is_the_route() -> None:
    local: dict[PartitionKey, Route] = {}
    routes = make(local)
    assert routes.get((TOPIC, 0)) == Route(0, "a", ("a", "b"))
    routes.learn([told(4, "d")])
    routes.learn([told(3, "c")])
    assert routes.get((TOPIC, 0)) == Route(4, "d", ("d", "z"))
    local[TOPIC, 0] = Route(5, "e", ("e",))
    assert routes.owner((TOPIC, 0)) == "e"
    local[TOPIC, 0] = Route(2, "e", ("e",))
    assert routes.owner((TOPIC, 0)) == "d", "another node knows the takeover, this one does not"


def test_unknown_partition_has_no_owner() -> None:
    routes = make({})
    assert routes.get((TOPIC, 1)) is None
    assert routes.owner((b"u" * 16, 0)) == ""
    routes.learn([told(4, "d")])
    routes.forget(TOPIC)
    assert routes.owner((TOPIC, 0)) == "a"


def test_first_epochs_of_a_deleted_topic_are_not_kept() -> None:
    topics = TopicRegistry()
    topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=1, first_epochs=[FIRST]))
    routes = Routes(topics, lambda _: None)
    assert routes.owner((TOPIC, 0)) == "a"
    topics.apply(pb.TopicRecord(name="t", topic_id=TOPIC, revision=2, deleted=True))
    routes.forget(TOPIC)
    assert routes.get((TOPIC, 0)) is None


def test_metadata_without_placement_is_ignored() -> None:
    routes = make({})
    routes.learn([pb.TopicInfo(topic_id=TOPIC, partitions=[pb.PartitionInfo(partition=0, owner="x", epoch=9)])])
    assert routes.owner((TOPIC, 0)) == "a"


def test_only_newer_epochs_are_reported_as_changes() -> None:
    heard: list[tuple[bytes, int]] = []
    routes = Routes(TopicRegistry(), lambda _: None, lambda *key: heard.append(key))
    for epoch in (4, 4, 3, 5):
        routes.learn([told(epoch, "d")])
    assert heard == [(TOPIC, 0), (TOPIC, 0)]
