"""The topic registry and the checks of a topic's configuration."""

from __future__ import annotations

import pytest

from tidelog_broker.core.topics import TopicRegistry, altered, complete_config
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PARTITIONS_MAX, SEGMENT_BYTES_MIN


def record(name: str = "t", *, number: int = 1, revision: int = 1, deleted: bool = False) -> pb.TopicRecord:
    return pb.TopicRecord(
        name=name,
        topic_id=bytes([number]) * 16,
        revision=revision,
        deleted=deleted,
        config=complete_config(pb.TopicConfig(partitions=2)),
    )


def test_the_highest_revision_holds_in_whatever_order() -> None:
    registry = TopicRegistry()
    assert registry.apply(record(revision=2))
    assert not registry.apply(record(revision=1))
    assert registry.named("t").revision == 2


def test_a_deletion_is_final_and_the_name_is_free_for_another_id() -> None:
    registry = TopicRegistry()
    registry.apply(record())
    registry.apply(record(revision=2, deleted=True))
    assert not registry.apply(record(revision=9))
    assert not registry.exists("t")
    registry.apply(record(number=2))
    assert registry.named("t").topic_id == bytes([2]) * 16
    with pytest.raises(ProtocolError, match="was deleted"):
        registry.with_id(bytes([1]) * 16)
    assert [topic.topic_id for topic in registry.deleted()] == [bytes([1]) * 16]
    assert [topic.name for topic in registry.live()] == ["t"]
    assert len(list(registry.records())) == 2


def test_a_late_deletion_of_an_old_id_leaves_the_new_topic_alone() -> None:
    registry = TopicRegistry()
    registry.apply(record(number=1))
    registry.apply(record(number=2))
    registry.apply(record(number=1, revision=2, deleted=True))
    assert registry.named("t").topic_id == bytes([2]) * 16


def test_unset_fields_get_defaults_and_acknowledged_means_synced() -> None:
    config = complete_config(pb.TopicConfig())
    assert (config.partitions, config.flush, config.engine) == (1, pb.ALWAYS, "segment")
    assert config.segment_bytes > 0


@pytest.mark.parametrize(
    "bad",
    [
        pb.TopicConfig(partitions=PARTITIONS_MAX + 1),
        pb.TopicConfig(segment_bytes=SEGMENT_BYTES_MIN - 1),
        pb.TopicConfig(flush_interval_ms=3_600_000),
        pb.TopicConfig(replication_factor=3),
        pb.TopicConfig(engine="tape"),
    ],
)
def test_what_cannot_be_served_is_refused(bad: pb.TopicConfig) -> None:
    with pytest.raises(ProtocolError) as caught:
        complete_config(bad)
    assert caught.value.code == pb.INVALID_REQUEST


def test_an_alteration_changes_what_it_names_and_partitions_only_grow() -> None:
    standing = record()
    changed = altered(standing, pb.TopicAlter(name="t", partitions=5, retention_bytes=9))
    assert (changed.config.partitions, changed.config.retention_bytes, changed.revision) == (5, 9, 2)
    assert changed.config.flush == standing.config.flush
    with pytest.raises(ProtocolError, match="only grows"):
        altered(changed, pb.TopicAlter(name="t", partitions=4))
    with pytest.raises(ProtocolError, match="segment_bytes"):
        altered(changed, pb.TopicAlter(name="t", segment_bytes=1))
