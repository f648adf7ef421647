from __future__ import annotations

import dataclasses

import pytest

from tidelog import Topic
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.topic_settings import (
    ALTERABLE,
    DESCRIBED,
    TOPIC_SETTINGS,
    fill_in_defaults,
    needed_features,
    values_of,
)


def test_table_has_each_field_of_the_protocol() -> None:
    of_schemas = {"typed", "schema_floor"}
    assert {*TOPIC_SETTINGS} | of_schemas == {field.name for field in pb.TopicConfig.DESCRIPTOR.fields}
    assert {"name", *ALTERABLE} == {field.name for field in pb.TopicAlter.DESCRIPTOR.fields}
    assert {*DESCRIBED} <= {field.name for field in dataclasses.fields(Topic)}


@pytest.mark.parametrize("name", TOPIC_SETTINGS)
def test_default_is_valid_and_a_value_out_of_range_is_not(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    setting.check_stored(setting.default)
    assert setting.encode(setting.decode(setting.default)) == setting.default
    if setting.kind is int:
        setting.check_stored(setting.maximum)
        for wrong in (setting.minimum - 1, setting.maximum + 1):
            with pytest.raises(ValueError, match=f"{name} must be {setting.minimum} to {setting.maximum}, got {wrong}"):
                setting.check_stored(wrong)
    if setting.kind is str:
        with pytest.raises(ValueError, match=f"{name} must be one of"):
            setting.check_stored(99)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", True),
        ("partitions", 0),
        ("partitions", 1.0),
        ("hold", 1),
        ("flush", 1),
        ("flush", "ALWAYS"),
        ("flush", []),
    ],
)
def test_value_of_a_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        TOPIC_SETTINGS[name].encode(value)


def test_unset_fields_get_defaults_and_others_stay() -> None:
    config = pb.TopicConfig(partitions=7, hold=True)
    fill_in_defaults(config)
    values = values_of(config)
    assert (config.partitions, values["hold"], values["flush"], values["dirty_percent"]) == (7, True, "always", 50)
    assert (values["cleanup"], values["engine"], values["retention_ms"]) == ("delete", "segment", 0)


def test_unset_or_unknown_choice_reads_as_the_default() -> None:
    assert values_of(pb.TopicConfig())["cleanup"] == "delete"
    assert values_of(pb.TopicConfig.FromString(b"\x50\x09"))["cleanup"] == "delete"
    assert values_of(pb.TopicConfig(cleanup=pb.COMPACT))["cleanup"] == "compact"


def test_values_that_differ_from_the_default_need_the_feature_of_the_setting() -> None:
    assert needed_features(pb.TopicConfig(retention_ms=5)) == set()
    assert needed_features(pb.TopicConfig(deduplicate_s=5)) == {"topic.deduplicate"}
