from __future__ import annotations

import pytest
from tests.holding import longest_of

from tidelog.cluster import metadata as metadata_module
from tidelog.cluster.metadata import Metadata
from tidelog.errors import EpochChangingError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb

HERE = ("127.0.0.1", 7400)


def reply(owner: str, epoch: int, topic_id: bytes = b"1" * 16, serial: int = 0) -> pb.MetadataReply:
    return pb.MetadataReply(
        nodes=[pb.NodeInfo(node_id="a", host="ha", port=1), pb.NodeInfo(node_id="b", host="hb", port=2)],
        topics=[
            pb.TopicInfo(
                name="t",
                topic_id=topic_id,
                serial=serial,
                partitions=[pb.PartitionInfo(partition=0, owner=owner, epoch=epoch)],
            )
        ],
    )


def test_owners_are_found() -> None:
    metadata = Metadata()
    assert metadata.owner_address("t", 0) is None
    assert metadata.merge(reply("a", 0), HERE) == {}
    assert metadata.owner_address("t", 0) == ("ha", 1)
    assert metadata.owner_address("t", 1) is None
    assert metadata.addresses() == [("ha", 1), ("hb", 2)]
    assert metadata.name_of(b"1" * 16) == "t"


def test_older_epoch_does_not_restore_an_owner() -> None:
    metadata = Metadata()
    metadata.merge(reply("b", 3), HERE)
    metadata.merge(reply("a", 2), HERE)
    assert metadata.owner_address("t", 0) == ("hb", 2)
    metadata.merge(reply("a", 4), HERE)
    assert metadata.owner_address("t", 0) == ("ha", 1)


def test_unknown_owner_does_not_replace_owner_of_the_same_epoch() -> None:
    metadata = Metadata()
    metadata.merge(reply("b", 3), HERE)
    metadata.merge(reply("", 3), HERE)
    assert metadata.owner_address("t", 0) == ("hb", 2)
    metadata.merge(reply("", 4), HERE)
    assert metadata.owner_address("t", 0) is None
    metadata.merge(reply("a", 4), HERE)
    assert metadata.owner_address("t", 0) == ("ha", 1)


def test_newer_epoch_outdates_the_known_owner() -> None:
    metadata = Metadata()
    metadata.note_epoch("t", 0, 3)
    metadata.merge(reply("b", 3), HERE)
    metadata.note_epoch("t", 0, 3)
    assert metadata.owner_address("t", 0) == ("hb", 2)
    metadata.note_epoch("t", 0, 5)
    metadata.merge(reply("a", 4), HERE)
    route = metadata.route("t", 0)
    assert route is not None
    assert (route.owner, route.epoch) == ("", 5)
    metadata.merge(reply("a", 5), HERE)
    assert metadata.owner_address("t", 0) == ("ha", 1)


def test_address_of_newest_incarnation_is_kept() -> None:
    metadata = Metadata()
    for incarnation, port in ((2, 20), (1, 10)):
        answer = reply("a", 0)
        answer.nodes[0].incarnation, answer.nodes[0].port = incarnation, port
        metadata.merge(answer, HERE)
    assert metadata.owner_address("t", 0) == ("ha", 20)


def test_revision_grows_with_changes_only() -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 1), HERE)
    before = metadata.revision
    metadata.merge(reply("a", 1), HERE)
    metadata.merge(reply("b", 0), HERE)
    metadata.note_epoch("t", 0, 1)
    metadata.forget("unknown")
    assert metadata.revision == before
    metadata.merge(reply("b", 2), HERE)
    assert metadata.revision > before


def test_another_topic_id_replaces_the_topic() -> None:
    metadata = Metadata()
    metadata.merge(reply("b", 3), HERE)
    metadata.merge(reply("a", 0, b"2" * 16), HERE)
    assert metadata.owner_address("t", 0) == ("ha", 1)


def test_topic_with_error_is_forgotten_and_reported() -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 0), HERE)
    gone = pb.MetadataReply(topics=[pb.TopicInfo(name="t", error=pb.Error(code=pb.UNKNOWN_TOPIC, message="no"))])
    errors = metadata.merge(gone, HERE)
    assert isinstance(errors["t"], UnknownTopicError)
    assert metadata.topic("t") is None


def test_node_without_address_gets_the_answers_address() -> None:
    metadata = Metadata()
    answer = reply("a", 0)
    answer.nodes[0].host = ""
    answer.nodes[0].port = 0
    metadata.merge(answer, HERE)
    assert metadata.owner_address("t", 0) == HERE


def test_long_poll_names_the_first_unknown_epoch() -> None:
    metadata = Metadata()
    assert metadata.known(["t"]) is None
    assert metadata.known([]) == []
    metadata.merge(reply("a", 3), HERE)
    [known] = metadata.known(["t"]) or []
    assert (known.topic_id, list(known.news_from)) == (b"1" * 16, [4])
    metadata.note_epoch("t", 0, 5)
    [known] = metadata.known(["t"]) or []
    assert list(known.news_from) == [5], "the owner of that epoch is unknown"
    assert metadata.known(["t", "u"]) is None


def test_topics_with_more_partitions_than_a_request_lists_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = Metadata()
    answer = reply("a", 3)
    answer.topics[0].partitions[0].partition = 2
    metadata.merge(answer, HERE)
    monkeypatch.setattr(metadata_module, "KNOWN_PARTITIONS_MAX", 3)
    assert metadata.known(["t"]) is not None
    monkeypatch.setattr(metadata_module, "KNOWN_PARTITIONS_MAX", 2)
    assert metadata.known(["t"]) is None


def test_unknown_partition_is_requested_from_epoch_0() -> None:
    metadata = Metadata()
    answer = reply("a", 3)
    answer.topics[0].partitions[0].partition = 2
    metadata.merge(answer, HERE)
    [known] = metadata.known(["t"]) or []
    assert list(known.news_from) == [0, 0, 4]


OLD, NEW = b"1" * 16, b"2" * 16


def id_of(metadata: Metadata) -> bytes | None:
    route = metadata.topic("t")
    return route.topic_id if route is not None else None


def test_older_topic_of_the_name_is_ignored() -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 0, OLD, serial=3), HERE)
    assert metadata.merge(reply("a", 0, NEW, serial=5), HERE) == {}
    assert id_of(metadata) == NEW
    errors = metadata.merge(reply("b", 7, OLD, serial=3), HERE)
    assert isinstance(errors["t"], EpochChangingError), "retriable: another node may be current"
    assert id_of(metadata) == NEW
    metadata.forget("t")
    assert isinstance(metadata.merge(reply("b", 7, OLD, serial=3), HERE)["t"], EpochChangingError)
    assert id_of(metadata) is None


@pytest.mark.parametrize("serial", [0, 3])
def test_deleted_topic_is_ignored(serial: int) -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 0, OLD, serial=serial), HERE)
    metadata.note_deleted("t", OLD)
    assert id_of(metadata) is None
    assert isinstance(metadata.merge(reply("a", 9, OLD, serial=serial), HERE)["t"], EpochChangingError)
    assert metadata.merge(reply("a", 0, NEW, serial=serial and serial + 1), HERE) == {}
    metadata.note_deleted("t", OLD)
    assert id_of(metadata) == NEW, "an answer about the older topic does not affect this one"


def test_creator_ignores_older_topics_of_the_name() -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 0, OLD, serial=3), HERE)
    metadata.note_created(pb.TopicInfo(name="t", topic_id=NEW, serial=4))
    assert "t" in metadata.merge(reply("a", 0, OLD, serial=3), HERE)
    assert metadata.merge(reply("a", 0, NEW, serial=4), HERE) == {}


def test_unconfirmed_answer_removes_nothing() -> None:
    metadata = Metadata()
    metadata.merge(reply("a", 0), HERE)
    unsure = pb.TopicInfo(name="t", error=pb.Error(code=pb.EPOCH_CHANGING))
    assert "t" in metadata.merge(pb.MetadataReply(topics=[unsure]), HERE)
    assert metadata.topic("t") is not None


def test_remembered_deletions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "REMEMBERED_MAX", 3)
    metadata = Metadata()
    for number in range(9):
        metadata.note_deleted("t", bytes([number]) * 16)
        metadata.note_created(pb.TopicInfo(name=f"t-{number}", topic_id=bytes(16), serial=1))
    assert longest_of(metadata) == 3


def test_remembered_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "REMEMBERED_MAX", 3)
    metadata = Metadata()
    for number in range(9):
        metadata.merge(reply("a", 0, bytes([number]) * 16, serial=number + 1), HERE)
    assert longest_of(metadata) == 3
    names = [metadata.name_of(bytes([number]) * 16) for number in range(9)]
    assert names == [None] * 5 + ["t"] * 4
    metadata.forget("t")
    assert metadata.name_of(bytes([8]) * 16) == "t"
