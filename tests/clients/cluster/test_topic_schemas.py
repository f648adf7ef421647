from __future__ import annotations

from typing import Any

import pytest

from tidelog.cluster.topic_schemas import TOPICS_MAX, TopicSchemas, typed_number
from tidelog.errors import BadReplyError, UnknownSchemaError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema.next_schema import Edits, edited_schema, first_schema
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text
from tidelog_proto.wire.frames import Frame

TOPIC = b"t" * 16


def chain(count: int) -> list[Schema]:
    schemas = [first_schema([field_of_text("a int8")])]
    for number in range(2, count + 1):
        schemas.append(edited_schema(schemas[-1], Edits(add=[("", field_of_text(f"f{number} string"))]))[0])
    return schemas


class Node:
    """Answers SCHEMAS in pages of two."""

    def __init__(self, schemas: list[Schema]) -> None:
        self.schemas = schemas
        self.asked: list[pb.Schemas] = []

    async def __call__(self, make: Any, *, repeatable: bool) -> Frame:
        assert repeatable
        request = make().schemas
        self.asked.append(request)
        numbers = set(request.numbers)
        found = [s for s in self.schemas if (s.number in numbers if numbers else s.number >= request.first_number)]
        reply = pb.SchemasReply(schemas=map(message_of_schema, found[:2]))
        if not numbers and len(found) > 2:
            reply.next_number = found[2].number
        return Frame(pb.Envelope(schemas_reply=reply), memoryview(b""))


async def test_each_schema_is_read_once() -> None:
    node = Node(chain(5))
    schemas = TopicSchemas(node)
    assert (await schemas.layout(TOPIC, 3)).number == 3
    assert (await schemas.layout(TOPIC, 3)).number == 3
    assert len(node.asked) == 1
    assert (await schemas.refresh(TOPIC)).number == 5
    assert list(await schemas.all(TOPIC)) == node.schemas
    assert sorted(schemas.known(TOPIC)) == [1, 2, 3, 4, 5]
    newest = schemas.newest(TOPIC)
    assert newest is not None
    assert newest.number == 5
    assert schemas.newest(b"u" * 16) is None


async def test_a_missing_schema_is_an_error() -> None:
    schemas = TopicSchemas(Node([]))
    with pytest.raises(UnknownSchemaError, match="has no schema 2"):
        await schemas.layout(TOPIC, 2)
    with pytest.raises(UnknownSchemaError, match="not typed"):
        await schemas.refresh(TOPIC)


async def test_a_number_never_changes_its_meaning() -> None:
    schemas = TopicSchemas(Node([]))
    (first,) = chain(1)
    assert schemas.note(TOPIC, message_of_schema(first)) == first
    other = first_schema([field_of_text("b int8")])
    with pytest.raises(BadReplyError, match="belong to one cluster"):
        schemas.note(TOPIC, message_of_schema(other))
    damaged = message_of_schema(other)
    damaged.digest ^= 1
    with pytest.raises(BadReplyError, match="cannot use"):
        schemas.note(b"u" * 16, damaged)


async def test_topics_used_longest_ago_are_evicted() -> None:
    schemas = TopicSchemas(Node([]))
    message = message_of_schema(chain(1)[0])
    schemas.note(TOPIC, message)
    for number in range(TOPICS_MAX - 1):
        schemas.note(number.to_bytes(16, "big"), message)
    assert schemas.known(TOPIC)
    schemas.note(b"n" * 16, message)
    assert schemas.known(TOPIC)
    assert not schemas.known((0).to_bytes(16, "big"))


def test_damaged_and_untyped_headers_have_no_number() -> None:
    assert typed_number(memoryview(b"x" * 200)) == 0
