from __future__ import annotations

import re

import pytest

from tidelog import Topic
from tidelog.errors import InvalidRequestError, TopicExistsError
from tidelog.model import TopicSettings
from tidelog.topic_settings import check_existing, topic_alter, topic_create
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import ALTERABLE


def test_settings_that_are_missing_are_left_to_the_node() -> None:
    unset = dict.fromkeys(ALTERABLE) | {"partitions": 2}
    assert topic_create("t", unset) == pb.TopicCreate(name="t", config=pb.TopicConfig(partitions=2))
    asked = {"flush": "never", "retention_bytes": 7, "retention_ms": 9, "cleanup": "compact,delete", "hold": True}
    assert topic_create("t", asked).config == pb.TopicConfig(
        flush=pb.NEVER, retention_bytes=7, retention_ms=9, cleanup=pb.COMPACT_AND_DELETE, hold=True
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("partitions", -1),
        ("partitions", 0),
        ("segment_bytes", 0),
        ("engine", 1),
        ("partitions", "2"),
        ("partitions", True),
        ("partitions", 2**32),
        ("retention_ms", 2**64),
        ("flush", "maybe"),
        ("flush", 1),
        ("cleanup", "delete,compact,"),
        ("cleanup", None.__class__),
        ("hold", 1),
        ("index_key", "yes"),
        ("dirty_percent", 0),
        ("tombstone_retention_ms", 0),
    ],
)
def test_wrong_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=setting):
        topic_create("t", {setting: value})
    with pytest.raises(InvalidRequestError, match=setting):
        topic_alter("t", {setting: value})


def test_a_change_names_only_the_given_settings() -> None:
    request = topic_alter("t", {"partitions": 4, "flush": "always", "segment_bytes": None, "hold": False})
    assert request == pb.TopicAlter(name="t", partitions=4, flush=pb.ALWAYS, hold=False)
    assert request.HasField("hold"), "ending a hold is a change"
    assert topic_alter("t", {"replication_factor": 3}) == pb.TopicAlter(name="t", replication_factor=3)


def test_types_for_users_have_each_setting_of_the_table() -> None:
    assert {"partitions", *TopicSettings.__annotations__} == {*ALTERABLE}
    documented = re.findall(r"^ {8}(\w+): ", str(TopicSettings.__doc__), flags=re.MULTILINE)
    assert documented == [*TopicSettings.__annotations__]


def test_existing_topic_must_have_the_given_settings() -> None:
    topic = Topic("t", bytes(16), count=3, retention_ms=5)
    check_existing(topic, {"partitions": None, "retention_ms": 5, "flush": None})
    with pytest.raises(TopicExistsError, match=r"partitions is 3, not 4; retention_ms is 5, not 0"):
        check_existing(topic, {"partitions": 4, "retention_ms": 0})


def test_error_for_fewer_partitions_says_that_they_can_only_be_added() -> None:
    topic = Topic("t", bytes(16), count=6, retention_ms=5)
    remedy = "partitions can only be added, so leave the number out or give 6"
    with pytest.raises(TopicExistsError, match=rf"\(partitions is 6, not 4\): {remedy}$"):
        check_existing(topic, {"partitions": 4})
    with pytest.raises(TopicExistsError, match=f"{remedy}; change other settings with alter_topic, or leave them out$"):
        check_existing(topic, {"partitions": 4, "retention_ms": 0})
    with pytest.raises(TopicExistsError, match=r"\(partitions is 6, not 7\): change them with alter_topic"):
        check_existing(topic, {"partitions": 7})
