"""The registry of schemas: application, bounds, snapshots."""

from __future__ import annotations

from threading import Lock, Thread

import pytest
from tests.broker.typed import FIRST, SECOND, THIRD

from tidelog_broker.core.schemas import SchemaRegistry, wrapped_schema
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema

ID = b"t" * 16


def record(schema: Schema, topic_id: bytes = ID, **more: object) -> pb.SchemaRecord:
    return pb.SchemaRecord(topic_id=topic_id, schema=message_of_schema(schema), **more)  # type: ignore[arg-type]


def test_first_record_of_a_number_wins() -> None:
    registry = SchemaRegistry()
    assert registry.apply(record(FIRST, creator="ada"))
    assert not registry.apply(record(FIRST, creator="bob"))
    other = Schema(1, 3, FIRST.fields[::-1])
    assert not registry.apply(record(other))
    schemas = registry.of(ID)
    assert (schemas.record(1).creator, schemas.schema(1), schemas.digest(1)) == ("ada", FIRST, FIRST.digest)


def test_later_records_may_come_first() -> None:
    """The log may begin in front of a snapshot, with newer records than its first ones."""
    registry = SchemaRegistry()
    schemas = registry.of(ID)
    for schema, known in ((THIRD, [3]), (FIRST, [1, 3]), (SECOND, [1, 2, 3])):
        assert registry.apply(record(schema))
        assert [*schemas] == known
        assert (registry.newest_number(ID), len(schemas)) == (3, len(known))
    assert schemas[2].schema == SECOND


def test_unknown_schema_is_retriable() -> None:
    registry = SchemaRegistry()
    registry.apply(record(FIRST))
    schemas = registry.of(ID)
    assert (2 in schemas, schemas.digest(2)) == (False, None)
    for look in (schemas.__getitem__, schemas.get, schemas.schema):
        with pytest.raises(ProtocolError, match="does not know schema 2") as raised:
            look(2)
        assert (raised.value.code, raised.value.retriable) == (pb.EPOCH_CHANGING, True)


def test_schema_of_a_newer_build_is_refused_when_it_is_used() -> None:
    registry = SchemaRegistry()
    later = record(FIRST)
    later.schema.digest ^= 1
    assert registry.apply(later)
    with pytest.raises(ProtocolError, match="update this build") as raised:
        registry.of(ID).schema(1)
    assert raised.value.code == pb.UNSUPPORTED_BATCH


def test_snapshot_restores_the_registry() -> None:
    registry, other = SchemaRegistry(), b"u" * 16
    for one in (record(FIRST), record(SECOND), record(FIRST, other, created_us=5)):
        registry.apply(one)
    again = SchemaRegistry()
    for stored in registry.records():
        assert again.apply(pb.MetaRecord.FromString(stored.SerializeToString()).schema)
    assert [*again.records()] == [*registry.records()]
    assert again.size_bytes == registry.size_bytes == sum(len(one.SerializeToString()) for one in registry.records())
    assert pb.MetaRecord.FromString(wrapped_schema(record(FIRST)).SerializeToString()).WhichOneof("what") == "schema"


def test_forgotten_schemas_take_no_space_and_stay_readable_for_holders() -> None:
    registry = SchemaRegistry()
    registry.apply(record(FIRST))
    held = registry.of(ID)
    registry.forget(ID)
    registry.forget(ID)
    assert (registry.size_bytes, registry.newest_number(ID), [*registry.records()]) == (0, 0, [])
    assert held.schema(1) == FIRST


def test_cache_of_layouts_is_bounded_and_shared_by_threads() -> None:
    registry = SchemaRegistry(Lock(), layout_bytes=200)
    ids = [bytes([number]) * 16 for number in range(50)]
    for topic_id in ids:
        registry.apply(record(FIRST, topic_id))
    wrong: list[object] = []

    def read() -> None:
        for _ in range(20):
            wrong.extend(topic_id for topic_id in ids if registry.of(topic_id)[1].schema != FIRST)

    threads = [Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    last = registry.of(ids[0])[1]
    assert registry.of(ids[0])[1] is last, "the last one stays"
    assert all(registry.of(topic_id)[1].number == 1 for topic_id in ids[1:])
    assert registry.of(ids[0])[1] is not last, "older ones are removed"
