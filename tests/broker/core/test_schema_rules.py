"""Rules of the first and the next schema of a topic, without a node."""

from __future__ import annotations

import pytest
from tests.broker.core.test_schemas import ID, record
from tests.broker.typed import FIRST, SECOND, THIRD, change_to

from tidelog_broker.core.schema_rules import (
    check_compactable,
    checked_floor,
    first_schema_of,
    is_repeated,
    next_schema_of,
)
from tidelog_broker.core.schemas import SchemaRegistry, TopicSchemas
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.schema_messages import message_of_schema


@pytest.fixture
def schemas() -> TopicSchemas:
    registry = SchemaRegistry()
    registry.apply(record(FIRST))
    registry.apply(record(SECOND))
    return registry.of(ID)


def test_first_schema() -> None:
    assert first_schema_of(pb.TopicCreate(name="t")) is None
    assert first_schema_of(pb.TopicCreate(name="t", schema=message_of_schema(FIRST))) == FIRST
    with pytest.raises(ProtocolError, match="must have the number 1, got 2"):
        first_schema_of(pb.TopicCreate(name="t", schema=message_of_schema(SECOND)))


def test_next_schema(schemas: TopicSchemas) -> None:
    assert next_schema_of(change_to(THIRD), schemas) == THIRD
    assert not is_repeated(change_to(THIRD), schemas)


def test_repeated_schemas_register_nothing(schemas: TopicSchemas) -> None:
    for schema in (SECOND, FIRST):
        assert is_repeated(change_to(schema), schemas)
    assert next_schema_of(change_to(SECOND), schemas) is None
    other = change_to(SECOND)
    other.schema.fields[2].name = "other"
    assert not is_repeated(other, schemas)
    with pytest.raises(ProtocolError, match="has schema 2, and the change expects 1") as raised:
        next_schema_of(other, schemas)
    assert raised.value.code == pb.SCHEMA_MISMATCH


@pytest.mark.parametrize(("floor", "expected"), [(None, 1), (1, 1), (2, 2)])
def test_floor(floor: int | None, expected: int) -> None:
    change = pb.SchemaChange(topic="t", expected_number=2, floor=floor)
    assert checked_floor(change, 1, 2) == expected


@pytest.mark.parametrize("floor", [0, 3, 2**32 - 1])
def test_floor_out_of_range_is_refused(floor: int) -> None:
    with pytest.raises(ProtocolError, match=f"must be 1 to 2, got {floor}"):
        checked_floor(pb.SchemaChange(topic="t", floor=floor), 1, 2)


def test_compaction_needs_a_required_key() -> None:
    for cleanup in (pb.COMPACT, pb.COMPACT_AND_DELETE, pb.DELETE):
        check_compactable(cleanup, FIRST, "t")
