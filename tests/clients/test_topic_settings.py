from __future__ import annotations

import dataclasses

import pytest

from tidelog import Topic
from tidelog.errors import InvalidRequestError
from tidelog.topic_settings import ALTERABLE, settings_of, topic_alter, topic_create
from tidelog_proto import broker_pb2 as pb


def test_missing_settings_are_left_to_the_node() -> None:
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
def test_invalid_settings_are_refused(setting: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=setting):
        topic_create("t", {setting: value})
    with pytest.raises(InvalidRequestError, match=setting):
        topic_alter("t", {setting: value})


def test_alteration_contains_changed_settings_only() -> None:
    request = topic_alter("t", {"partitions": 4, "flush": "always", "segment_bytes": None, "hold": False})
    assert request == pb.TopicAlter(name="t", partitions=4, flush=pb.ALWAYS, hold=False)
    assert request.HasField("hold"), "ending a hold is a change"
    assert topic_alter("t", {"replication_factor": 3}) == pb.TopicAlter(name="t", replication_factor=3)


def test_every_setting_can_be_created_altered_and_described() -> None:
    configured = {field.name for field in pb.TopicConfig.DESCRIPTOR.fields}
    assert set(settings_of(pb.TopicConfig())) == configured - {"partitions"}
    assert set(settings_of(pb.TopicConfig())) <= {field.name for field in dataclasses.fields(Topic)}
    assert {field.name for field in pb.TopicAlter.DESCRIPTOR.fields} == {"name", *ALTERABLE}
    assert configured - set(ALTERABLE) == {"ack_quorum", "engine"}


def test_missing_cleanup_of_an_older_node_means_delete() -> None:
    assert settings_of(pb.TopicConfig())["cleanup"] == "delete"
    assert settings_of(pb.TopicConfig(cleanup=pb.COMPACT))["cleanup"] == "compact"
