"""Changes of schemas with a node that answers as told; `test_typed_topics.py` asks a real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.admin.schema_changes import ATTEMPTS_MAX, check, evolve, schema_of, set_first_schema
from tidelog.admin.schema_proposals import SchemaEdits
from tidelog.cluster.topic_schemas import TopicSchemas
from tidelog.errors import InvalidRequestError, SchemaMismatchError
from tidelog.model import TopicRoute
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.schema_messages import message_of_schema, schema_of_message
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text
from tidelog_proto.wire.frames import Frame

FIRST = first_schema([field_of_text("a int8")])


class Registry:
    """A router with one topic; `before` is called ahead of each change."""

    def __init__(self, before: Callable[[Registry], None] = lambda _: None, *, typed: bool = True) -> None:
        self.chain = [FIRST] if typed else []
        self.floor = 1
        self.changes = 0
        self.before = before
        self.schemas = TopicSchemas(self.call_any)

    async def confirmed_topic(self, name: str) -> TopicRoute:
        return TopicRoute(name, b"t" * 16, schema_number=len(self.chain))

    async def call_any(self, make: Any, *, repeatable: bool) -> Frame:
        envelope = make()
        assert repeatable
        if envelope.WhichOneof("kind") == "schemas":
            found = [each for each in self.chain if each.number >= envelope.schemas.first_number]
            return Frame(
                pb.Envelope(schemas_reply=pb.SchemasReply(schemas=map(message_of_schema, found))), memoryview(b"")
            )
        self.changes += 1
        self.before(self)
        change = envelope.schema_change
        if change.expected_number != len(self.chain):
            raise SchemaMismatchError("another number")
        self.chain.append(schema_of_message(change.schema))
        self.floor = change.floor if change.HasField("floor") else self.floor
        reply = pb.SchemaChangeReply(schema=change.schema, floor=self.floor)
        return Frame(pb.Envelope(schema_change_reply=reply), memoryview(b""))

    def add(self, text: str) -> Schema:
        self.chain.append(SchemaEdits(add=[text]).next_of(self.chain[-1])[0])
        return self.chain[-1]


async def test_a_change_is_registered_with_the_number_that_it_expects() -> None:
    router: Any = Registry()
    found = await evolve(router, "t", SchemaEdits(add=["b string"]).next_of, None, raise_floor=True)
    assert (found.before, found.schema, router.floor) == (FIRST, router.chain[1], 2)
    assert await schema_of(router, "t", None) == found.schema
    assert await schema_of(router, "t", 1) == FIRST


async def test_a_change_is_made_again_for_a_schema_that_came_first() -> None:
    def other(registry: Registry) -> None:
        if registry.changes == 1:
            registry.add("other string")

    router: Any = Registry(other)
    found = await evolve(router, "t", SchemaEdits(add=["b string"]).next_of, None, raise_floor=False)
    assert [field.name for field in found.schema.fields] == ["a", "other", "b"]
    assert (router.changes, router.floor) == (2, 1)
    router = Registry(other)
    with pytest.raises(SchemaMismatchError):
        await evolve(router, "t", SchemaEdits(add=["b string"]).next_of, 1, raise_floor=False)
    assert router.changes == 1


async def test_changes_that_are_always_too_late_end() -> None:
    def always(registry: Registry) -> None:
        registry.add(f"f{registry.changes} string")

    router: Any = Registry(always)
    with pytest.raises(SchemaMismatchError):
        await evolve(router, "t", SchemaEdits(add=["b string"]).next_of, None, raise_floor=False)
    assert router.changes == ATTEMPTS_MAX


async def test_checks_change_nothing() -> None:
    router: Any = Registry()
    found = await check(router, "t", SchemaEdits(add=["b string"]).next_of, 1)
    assert (found.schema.number, router.changes) == (2, 0)
    with pytest.raises(SchemaMismatchError, match="has schema 1 now, and schema 2 was expected"):
        await check(router, "t", SchemaEdits(add=["b string"]).next_of, 2)
    with pytest.raises(InvalidRequestError, match="change something"):
        await check(router, "t", SchemaEdits().next_of, None)
    untyped: Any = Registry(typed=False)
    with pytest.raises(InvalidRequestError, match="is not typed"):
        await check(untyped, "t", SchemaEdits().next_of, None)


def test_roles_without_a_schema_are_refused() -> None:
    request = pb.TopicCreate(name="t")
    assert set_first_schema(request, None, key=None, time=None, tag=None) is None
    assert not request.HasField("schema")
    with pytest.raises(InvalidRequestError, match="key, tag name fields of a schema"):
        set_first_schema(request, None, key="a", time=None, tag="b")
    assert set_first_schema(request, ["a int8"], key=None, time=None, tag=None) == FIRST
    assert request.schema == message_of_schema(FIRST)
