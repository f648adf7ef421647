"""The topic registry, and validation of topic configurations."""

from __future__ import annotations

import pytest

from tidelog_broker.core.topics import (
    DENIED_MAX,
    META_TOPIC_ID,
    OFFSETS_TOPIC_ID,
    TopicRegistry,
    altered,
    complete_config,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PARTITIONS_MAX, RETENTION_MS_MAX, SEGMENT_BYTES_MIN


def record(name: str = "t", *, number: int = 1, revision: int = 1, deleted: bool = False) -> pb.TopicRecord:
    return pb.TopicRecord(
        name=name,
        topic_id=bytes([number]) * 16,
        revision=revision,
        deleted=deleted,
        config=complete_config(pb.TopicConfig(partitions=2)),
    )


def test_highest_revision_wins_in_any_order() -> None:
    registry = TopicRegistry()
    assert registry.apply(record(revision=2))
    assert not registry.apply(record(revision=1))
    assert registry.named("t").revision == 2


def test_deletion_is_final_and_frees_the_name_for_another_id() -> None:
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


def test_late_deletion_of_an_old_id_does_not_affect_the_new_topic() -> None:
    registry = TopicRegistry()
    registry.apply(record(number=1))
    registry.apply(record(number=2))
    registry.apply(record(number=1, revision=2, deleted=True))
    assert registry.named("t").topic_id == bytes([2]) * 16


def test_unknown_partition_may_exist_only_if_this_node_may_lag() -> None:
    registry, known, unknown = TopicRegistry(), bytes([1]) * 16, bytes([2]) * 16
    registry.apply(record())
    assert not registry.may_exist(unknown, 0)
    with pytest.raises(ProtocolError, match="does not exist"):
        registry.with_id(unknown)
    registry.may_lag = True
    assert [registry.may_exist(known, partition) for partition in (0, 1, 2)] == [False, False, True]
    assert registry.may_exist(unknown, 0)
    with pytest.raises(ProtocolError, match="does not know the topic") as refused:
        registry.with_id(unknown)
    assert refused.value.code == pb.EPOCH_CHANGING
    registry.apply(record(revision=2, deleted=True))
    assert not registry.may_exist(known, 2)
    with pytest.raises(ProtocolError, match="was deleted; create it again or use another topic"):
        registry.with_id(known)


def test_denied_id_stays_unknown() -> None:
    registry, unknown = TopicRegistry(), bytes([2]) * 16
    registry.may_lag = True
    registry.deny(unknown)
    assert not registry.may_exist(unknown, 0)
    with pytest.raises(ProtocolError, match="does not exist") as refused:
        registry.with_id(unknown)
    assert refused.value.code == pb.UNKNOWN_TOPIC


def test_known_and_internal_topics_cannot_be_denied() -> None:
    registry = TopicRegistry()
    registry.may_lag = True
    registry.apply(record())
    for topic_id in (bytes([1]) * 16, META_TOPIC_ID, OFFSETS_TOPIC_ID):
        registry.deny(topic_id)
    assert registry.with_id(bytes([1]) * 16).name == "t"
    assert registry.may_exist(bytes([1]) * 16, 2), "it may get more partitions"
    assert registry.may_exist(OFFSETS_TOPIC_ID, 0), "it is founded later than a node may be asked for it"


def test_number_of_denied_ids_is_limited_and_the_oldest_are_dropped() -> None:
    registry = TopicRegistry()
    registry.may_lag = True
    ids = [number.to_bytes(16, "big") for number in range(100, 100 + DENIED_MAX + 2)]
    for topic_id in ids:
        registry.deny(topic_id)
    assert [registry.may_exist(one, 0) for one in (*ids[:3], ids[-1])] == [True, True, False, False]


def test_unset_fields_get_defaults_and_acknowledged_records_are_synced() -> None:
    config = complete_config(pb.TopicConfig())
    assert (config.partitions, config.flush, config.engine) == (1, pb.ALWAYS, "segment")
    assert config.segment_bytes > 0
    assert (config.cleanup, config.retention_ms, config.compaction_lag_ms, config.hold) == (pb.DELETE, 0, 0, False)
    assert (config.tombstone_retention_ms, config.dirty_percent) == (86_400_000, 50)
    assert not config.index_key
    assert not config.index_tag


@pytest.mark.parametrize(
    "bad",
    [
        pb.TopicConfig(partitions=PARTITIONS_MAX + 1),
        pb.TopicConfig(segment_bytes=SEGMENT_BYTES_MIN - 1),
        pb.TopicConfig(flush_interval_ms=3_600_000),
        pb.TopicConfig(replication_factor=3),
        pb.TopicConfig(engine="a tape"),
        pb.TopicConfig(retention_ms=RETENTION_MS_MAX + 1),
        pb.TopicConfig(compaction_lag_ms=RETENTION_MS_MAX + 1),
        pb.TopicConfig(tombstone_retention_ms=RETENTION_MS_MAX + 1),
        pb.TopicConfig(dirty_percent=101),
        pb.TopicConfig.FromString(b"\x50\x09"),  # a cleanup that only a later release knows
    ],
)
def test_invalid_configuration_is_refused(bad: pb.TopicConfig) -> None:
    with pytest.raises(ProtocolError) as caught:
        complete_config(bad)
    assert caught.value.code == pb.INVALID_REQUEST


def test_alteration_changes_only_named_fields_and_partitions_only_grow() -> None:
    existing = record()
    changed = altered(existing, pb.TopicAlter(name="t", partitions=5, retention_bytes=9))
    assert (changed.config.partitions, changed.config.retention_bytes, changed.revision) == (5, 9, 2)
    assert changed.config.flush == existing.config.flush
    with pytest.raises(ProtocolError, match="cannot be reduced; got 4"):
        altered(changed, pb.TopicAlter(name="t", partitions=4))
    with pytest.raises(ProtocolError, match="segment_bytes"):
        altered(changed, pb.TopicAlter(name="t", segment_bytes=1))


@pytest.mark.parametrize(
    "change",
    [
        pb.TopicAlter(retention_ms=5),
        pb.TopicAlter(cleanup=pb.COMPACT),
        pb.TopicAlter(compaction_lag_ms=6),
        pb.TopicAlter(tombstone_retention_ms=7),
        pb.TopicAlter(dirty_percent=8),
        pb.TopicAlter(index_key=True),
        pb.TopicAlter(index_tag=True),
        pb.TopicAlter(hold=True),
    ],
)
def test_every_alterable_field_can_be_altered(change: pb.TopicAlter) -> None:
    (field, value), *_ = change.ListFields()
    changed = altered(record(), change).config
    assert getattr(changed, field.name) == value
    setattr(changed, field.name, getattr(record().config, field.name))
    assert changed == record().config


@pytest.mark.parametrize(
    "change",
    [
        pb.TopicAlter(tombstone_retention_ms=0),
        pb.TopicAlter(dirty_percent=0),
        pb.TopicAlter(cleanup=pb.CLEANUP_UNSPECIFIED),
    ],
)
def test_field_cannot_be_altered_to_an_empty_value(change: pb.TopicAlter) -> None:
    with pytest.raises(ProtocolError, match=change.ListFields()[0][0].name if change.ListFields() else ""):
        altered(record(), change)


def test_topic_from_before_compaction_uses_delete_and_can_be_altered() -> None:
    registry, old = TopicRegistry(), record()
    for field in ("cleanup", "tombstone_retention_ms", "dirty_percent"):
        old.config.ClearField(field)
    assert altered(old, pb.TopicAlter(name="t", hold=True)).config.dirty_percent == 50
    registry.apply(old)
    assert registry.config_of(old.topic_id) == record().config
    assert not old.config.cleanup, "the passed config is not modified"


def test_serials_never_restart_after_deletions() -> None:
    registry = TopicRegistry()
    assert registry.newest_serial == 0
    first, second = record(), record(number=2, deleted=True)
    first.serial, second.serial = 4, 9
    registry.apply(second)
    registry.apply(first)
    assert registry.newest_serial == 9
    replayed = TopicRegistry()
    for each in registry.records():
        replayed.apply(each)
    assert replayed.newest_serial == 9


def test_error_for_an_unknown_id_contains_the_id() -> None:
    registry = TopicRegistry()
    registry.apply(record(deleted=True))
    with pytest.raises(ProtocolError) as refused:
        registry.with_id(record().topic_id)
    assert refused.value.to_message().topic_id == record().topic_id


def test_existing_topics_and_partitions_are_counted_by_creator() -> None:
    topics = TopicRegistry()

    def put(number: int, partitions: int, revision: int, *, creator: str = "ada", deleted: bool = False) -> None:
        topics.apply(
            pb.TopicRecord(
                name=f"t{number}",
                topic_id=bytes(15) + bytes([100 + number]),
                config=pb.TopicConfig(partitions=partitions),
                revision=revision,
                creator=creator,
                deleted=deleted,
            )
        )

    put(1, 4, 1)
    put(2, 10, 1)
    put(3, 1, 1, creator="")
    put(1, 6, 2)
    put(1, 4, 1)  # an older revision changes nothing
    assert (topics.partitions, topics.created_by("ada"), topics.created_by("")) == (17, (2, 16), (1, 1))
    put(2, 10, 2, deleted=True)
    put(2, 99, 3)  # a deletion is final
    put(4, 5, 2, deleted=True)  # the deletion of a topic whose creation was not applied
    assert (topics.partitions, topics.created_by("ada")) == (7, (1, 6))
    put(1, 6, 3, deleted=True)
    assert (topics.partitions, topics.created_by("ada"), topics.created_by("bob")) == (1, (0, 0), (0, 0))
    assert topics.partitions == sum(record.config.partitions for record in topics.live())
