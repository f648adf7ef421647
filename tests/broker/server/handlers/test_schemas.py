"""SCHEMA_CHANGE and SCHEMAS of a running node: creation, evolution, races, limits, restarts."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.broker.peer import Peer
from tests.broker.stand import Stand
from tests.broker.typed import FIRST, SECOND, THIRD, change_to, create_typed, evolve
from tests.proto.large_schemas import largest_schema, widened
from tests.proto.schemas import schema_of

from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema import topic_schema
from tidelog_proto.schema.data_types import INT8, INT32, STRING
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.schema_messages import message_of_schema, schema_of_message
from tidelog_proto.schema.topic_schema import Schema


async def numbers_of(peer: Peer, topic_id: bytes, *, first_number: int = 0) -> list[int]:
    asked = pb.Schemas(topic_id=topic_id, first_number=first_number)
    reply = (await peer.ask(schemas=asked)).envelope.schemas_reply
    return [schema.number for schema in reply.schemas]


async def described(peer: Peer) -> pb.TopicInfo:
    return (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply.topics[0]


async def test_created_topic_has_its_first_schema(peer: Peer) -> None:
    topic = await create_typed(peer)
    assert (topic.config.typed, topic.config.schema_floor, topic.schema_number) == (True, 1, 1)
    reply = (await peer.ask(schemas=pb.Schemas(topic_id=topic.topic_id))).envelope.schemas_reply
    assert [schema_of_message(schema) for schema in reply.schemas] == [FIRST]
    assert (reply.newest_number, reply.floor, reply.next_number) == (1, 1, 0)
    plain = await peer.create("plain")
    assert (plain.config.typed, plain.schema_number) == (False, 0)
    refused = await peer.refused(schemas=pb.Schemas(topic_id=plain.topic_id))
    assert (refused.code, "'plain' is not typed" in refused.message) == (pb.INVALID_REQUEST, True)


async def test_evolved_topic_has_all_schemas_on_each_surface(peer: Peer) -> None:
    topic = await create_typed(peer)
    assert schema_of_message((await evolve(peer, SECOND)).schema) == SECOND
    await evolve(peer, THIRD, floor=2)
    reply = (await peer.ask(schemas=pb.Schemas(topic_id=topic.topic_id, first_number=2))).envelope.schemas_reply
    assert [schema_of_message(schema) for schema in reply.schemas] == [SECOND, THIRD]
    assert (reply.newest_number, reply.floor) == (3, 2)
    assert await numbers_of(peer, topic.topic_id) == [1, 2, 3]
    exact = (await peer.ask(schemas=pb.Schemas(topic_id=topic.topic_id, numbers=[1, 3]))).envelope.schemas_reply
    assert [schema.number for schema in exact.schemas] == [1, 3]
    for info in (
        await described(peer),
        (await peer.ask(metadata=pb.Metadata(topics=["t"]))).envelope.metadata_reply.topics[0],
        (await peer.ask(topic_list=pb.TopicList(brief=True))).envelope.topic_reply.topics[0],
        (await peer.ask(topic_list=pb.TopicList())).envelope.topic_reply.topics[0],
    ):
        assert (info.schema_number, info.config.schema_floor) == (3, 2)


async def test_unknown_number_is_refused(peer: Peer) -> None:
    topic = await create_typed(peer)
    refused = await peer.refused(schemas=pb.Schemas(topic_id=topic.topic_id, numbers=[1, 2]))
    assert (refused.code, refused.retriable, refused.definite) == (pb.UNKNOWN_SCHEMA, False, True)
    assert "'t' has no schema 2; its newest one is 1" in refused.message
    assert await numbers_of(peer, topic.topic_id, first_number=2) == [], "nothing follows the newest"
    refused = await peer.refused(schemas=pb.Schemas(topic_id=topic.topic_id, numbers=[2, 1]))
    assert refused.code == pb.INVALID_REQUEST
    assert (await peer.refused(schemas=pb.Schemas(topic_id=b"?" * 16))).code == pb.UNKNOWN_TOPIC


async def test_repeated_change_is_answered_alike_and_made_once(node: Node, peer: Peer) -> None:
    topic = await create_typed(peer)
    answers = [await evolve(peer, SECOND, floor=2) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    assert node.broker.schemas.newest_number(topic.topic_id) == 2
    await evolve(peer, THIRD, floor=3)
    assert schema_of_message((await evolve(peer, SECOND, floor=2)).schema) == SECOND
    assert (await described(peer)).config.schema_floor == 3, "a late repetition does not lower it"


async def test_of_two_changes_at_once_one_is_made(stand: Stand, node: Node) -> None:
    first, second = await stand.peer(), await stand.peer()
    topic = await create_typed(first)
    other = replace(SECOND, fields=(*SECOND.fields[:2], replace(SECOND.fields[2], name="other")))
    replies = await asyncio.gather(
        first.ask(schema_change=change_to(SECOND)), second.ask(schema_change=change_to(other))
    )
    kinds = sorted(reply.envelope.WhichOneof("kind") for reply in replies)
    assert kinds == ["error", "schema_change_reply"]
    (lost,) = (reply.envelope.error for reply in replies if reply.envelope.HasField("error"))
    assert (lost.code, lost.definite) == (pb.SCHEMA_MISMATCH, True)
    assert "'t' has schema 2, and the change expects 1" in lost.message
    (won,) = (reply.envelope.schema_change_reply.schema for reply in replies if not reply.envelope.HasField("error"))
    assert node.broker.schemas.of(topic.topic_id).record(2).schema == won


def narrowed() -> Schema:
    return Schema(2, 3, (FIRST.fields[0], replace(FIRST.fields[1], type=INT8)))


def reused() -> Schema:
    """Return a schema whose new field has the id of a dropped one."""
    return Schema(2, 3, (FIRST.fields[0], Field(2, "text", STRING)))


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (narrowed(), "its type changes from int32 to int8"),
        (reused(), "its type changes from int32 to string"),
        (Schema(2, 5, (*FIRST.fields, Field(3, "new", INT32, required=True))), "it is new and required"),
        (Schema(2, 3, (replace(FIRST.fields[0], role=Role.NONE), FIRST.fields[1])), "the roles of a topic are"),
        (Schema(2, 3, FIRST.fields), "equals schema 1"),
    ],
    ids=["narrowed", "id reused", "required", "role", "equal"],
)
async def test_change_that_breaks_a_rule_is_refused(peer: Peer, schema: Schema, text: str) -> None:
    topic = await create_typed(peer)
    refused = await peer.refused(schema_change=change_to(schema))
    assert (refused.code, refused.definite) == (pb.INVALID_REQUEST, True)
    assert text in refused.message
    assert await numbers_of(peer, topic.topic_id) == [1]


async def test_id_of_a_dropped_field_is_not_used_again(peer: Peer) -> None:
    await create_typed(peer, schema=Schema(1, 4, (*FIRST.fields, Field(3, "gone", INT32))))
    await evolve(peer, Schema(2, 4, FIRST.fields))
    refused = await peer.refused(schema_change=change_to(Schema(3, 4, (*FIRST.fields, Field(3, "gone", INT32)))))
    assert "the id 3 belonged to a dropped field" in refused.message


async def test_malformed_changes_are_refused(peer: Peer) -> None:
    topic = await create_typed(peer)
    await peer.create("plain")
    for change, code, text in (
        (pb.SchemaChange(topic="t"), pb.INVALID_REQUEST, "is empty"),
        (pb.SchemaChange(topic="none", floor=1, expected_number=1), pb.UNKNOWN_TOPIC, "does not exist"),
        (pb.SchemaChange(topic="plain", floor=1, expected_number=1), pb.INVALID_REQUEST, "'plain' is not typed"),
        (pb.SchemaChange(topic="__meta", floor=1, expected_number=1), pb.FORBIDDEN, "internal topic"),
        (pb.SchemaChange(topic="t", floor=2, expected_number=1), pb.INVALID_REQUEST, "must be 1 to 1, got 2"),
        (pb.SchemaChange(topic="t", floor=0, expected_number=1), pb.INVALID_REQUEST, "must be 1 to 1, got 0"),
        (pb.SchemaChange(topic="t", floor=1, expected_number=2), pb.SCHEMA_MISMATCH, "the change expects 2"),
        (pb.SchemaChange(topic="t", topic_id=b"?" * 16, floor=1, expected_number=1), pb.UNKNOWN_TOPIC, "recreated"),
        (pb.SchemaChange(topic="t", schema=message_of_schema(THIRD), expected_number=1), pb.INVALID_REQUEST, "one"),
        (change_to(THIRD), pb.SCHEMA_MISMATCH, "the change expects 2"),
    ):
        refused = await peer.refused(schema_change=change)
        assert (refused.code, text in refused.message) == (code, True), refused
    wrong = change_to(SECOND)
    wrong.schema.digest ^= 1
    assert "has the digest" in (await peer.refused(schema_change=wrong)).message
    later = pb.SchemaChange.FromString(change_to(SECOND).SerializeToString() + b"\xd0\x05\x07")
    assert "field 90 of SchemaChange" in (await peer.refused(schema_change=later)).message
    assert await numbers_of(peer, topic.topic_id) == [1]


async def test_malformed_first_schemas_are_refused(peer: Peer) -> None:
    for request, text in (
        (pb.TopicCreate(name="t", schema=message_of_schema(SECOND)), "must have the number 1, got 2"),
        (pb.TopicCreate(name="t", config=pb.TopicConfig(typed=True)), "typed and schema_floor cannot be set"),
        (pb.TopicCreate(name="t", config=pb.TopicConfig(schema_floor=1)), "typed and schema_floor cannot be set"),
    ):
        refused = await peer.refused(topic_create=request)
        assert (refused.code, text in refused.message) == (pb.INVALID_REQUEST, True), refused
    empty = pb.TopicCreate(name="t")
    empty.schema.SetInParent()
    assert (await peer.refused(topic_create=empty)).code == pb.INVALID_REQUEST


async def test_compacted_topic_needs_a_required_key(peer: Peer) -> None:
    unkeyed = schema_of(Field(0, "n", INT32))
    optional = schema_of(Field(0, "k", STRING, role=Role.KEY), Field(0, "n", INT32))
    compact = pb.TopicConfig(cleanup=pb.COMPACT)
    for schema, text in ((unkeyed, "no key field"), (optional, "the optional key field 'k'")):
        request = pb.TopicCreate(name="t", config=compact, schema=message_of_schema(schema))
        assert text in (await peer.refused(topic_create=request)).message
    await create_typed(peer, "loose", optional)
    assert "optional key" in (await peer.refused(topic_alter=pb.TopicAlter(name="loose", cleanup=pb.COMPACT))).message
    await create_typed(peer, cleanup=pb.COMPACT)
    loose = Schema(2, 3, (replace(FIRST.fields[0], required=False), FIRST.fields[1]))
    assert "the optional key field 'key'" in (await peer.refused(schema_change=change_to(loose))).message
    assert (await peer.ask(topic_alter=pb.TopicAlter(name="t", cleanup=pb.DELETE))).envelope.HasField("topic_reply")
    await evolve(peer, loose)


async def test_schemas_survive_a_restart_and_end_with_their_topic(stand: Stand, peer: Peer) -> None:
    topic = await create_typed(peer)
    await evolve(peer, SECOND, floor=2)
    node = await stand.restart()
    peer = await stand.peer()
    reply = (await peer.ask(schemas=pb.Schemas(topic_id=topic.topic_id))).envelope.schemas_reply
    assert [schema_of_message(schema) for schema in reply.schemas] == [FIRST, SECOND]
    assert (reply.newest_number, reply.floor) == (2, 2)
    assert node.broker.schemas.size_bytes > 0
    await peer.delete("t")
    assert node.broker.schemas.size_bytes == 0
    assert (await peer.refused(schemas=pb.Schemas(topic_id=topic.topic_id))).code == pb.UNKNOWN_TOPIC
    again = await create_typed(peer)
    assert await numbers_of(peer, again.topic_id) == [1]


async def test_snapshot_of_meta_contains_all_schemas(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await create_typed(peer)
    await evolve(peer, SECOND)
    doomed = await create_typed(peer, "doomed")
    await peer.delete("doomed")
    meta = node.broker.meta_log
    await meta.snapshot(await meta.ready())
    await evolve(peer, THIRD)
    node = await stand.restart()
    assert [*node.broker.schemas.of(topic.topic_id)] == [1, 2, 3]
    assert node.broker.schemas.of(topic.topic_id).schema(3) == THIRD
    assert node.broker.schemas.newest_number(doomed.topic_id) == 0


async def test_large_schemas_are_paged(peer: Peer) -> None:
    schemas = [largest_schema()]
    topic = await create_typed(peer, schema=schemas[0])
    schemas.append(widened(schemas[0]))
    await evolve(peer, schemas[1])
    for _ in range(6):
        newest = schemas[-1]
        fields = tuple(replace(field, doc="f" * len(field.doc) + str(newest.number)) for field in newest.fields)
        schemas.append(Schema(newest.number + 1, newest.next_field_id, fields))
        await evolve(peer, schemas[-1])
    found: list[Schema] = []
    at, pages = 1, 0
    while at:
        asked = pb.Schemas(topic_id=topic.topic_id, first_number=at)
        reply = (await peer.ask(schemas=asked)).envelope.schemas_reply
        found += map(schema_of_message, reply.schemas)
        at, pages = reply.next_number, pages + 1
    assert found == schemas
    assert pages > 1
    asked = pb.Schemas(topic_id=topic.topic_id, numbers=range(1, 9))
    reply = (await peer.ask(schemas=asked)).envelope.schemas_reply
    assert reply.next_number == len(reply.schemas) + 1, "the first one that is missing"


async def test_number_of_schemas_is_bounded(node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_schema, "SCHEMAS_PER_TOPIC_MAX", 2)
    await create_typed(peer)
    await evolve(peer, SECOND)
    refused = await peer.refused(schema_change=_raw_third())
    assert (refused.code, "a topic has the numbers 1 to 2" in refused.message) == (pb.INVALID_REQUEST, True)
    assert node.broker.topics.exists("t")


def _raw_third() -> pb.SchemaChange:
    schema = message_of_schema(SECOND)
    schema.number = 3
    return pb.SchemaChange(topic="t", schema=schema, expected_number=2)


async def test_size_of_all_schemas_is_bounded(node: Node, peer: Peer) -> None:
    topic = await create_typed(peer)
    used = node.broker.schemas.size_bytes
    node.broker.controller.schemas.bytes_max = used + 20
    refused = await peer.refused(schema_change=change_to(SECOND))
    assert refused.code == pb.QUOTA_EXCEEDED
    assert f"the schemas of the cluster have {used} bytes" in refused.message
    request = pb.TopicCreate(name="u", schema=message_of_schema(largest_schema()))
    assert (await peer.refused(topic_create=request)).code == pb.QUOTA_EXCEEDED
    assert not node.broker.topics.exists("u")
    assert await numbers_of(peer, topic.topic_id) == [1]


async def test_thousand_typed_topics(stand: Stand, node: Node, peer: Peer) -> None:
    requests = [pb.TopicCreate(name=f"t{number}", schema=message_of_schema(FIRST)) for number in range(1000)]
    for start in range(0, 1000, 50):
        numbers = [peer.post(topic_create=one) for one in requests[start : start + 50]]
        for number in numbers:
            assert (await peer.reply(number)).envelope.HasField("topic_reply")
    assert node.broker.schemas.size_bytes < 1 << 20
    node = await stand.restart()
    registry = node.broker.schemas
    assert all(registry.newest_number(one.topic_id) == 1 for one in node.broker.topics.live() if one.config.typed)
    assert sum(one.config.typed for one in node.broker.topics.live()) == 1000
