"""Schemas of typed topics: reading, checking and changing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from tidelog.admin.schema_proposals import first_schema_of
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, SchemaMismatchError, TopicExistsError
from tidelog.model import Topic
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.schema.evolution_rules import Change
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema

ATTEMPTS_MAX: Final = 5
"""How often a change is made again for a schema that another client has registered meanwhile."""

Next = Callable[[Schema], tuple[Schema, tuple[Change, ...]]]
"""Returns the schema that follows another one, and the list of changes; raises SchemaError."""


@dataclass(frozen=True, slots=True)
class NextSchema:
    """The schema that a change makes.

    Attributes:
        before: the newest schema of the topic.
        schema: the next one.
        changes: the differences, field by field.
    """

    before: Schema
    schema: Schema
    changes: Sequence[Change]


async def schema_of(router: Router, topic: str, number: int | None) -> Schema:
    """Return a schema of a topic; None: the newest.

    Raises:
        InvalidRequestError: the topic is not typed.
        UnknownSchemaError: the topic has no such schema.
    """
    topic_id = await typed_topic_id(router, topic)
    if number is None:
        return await router.schemas.refresh(topic_id)
    return (await router.schemas.layout(topic_id, number)).schema


async def check(router: Router, topic: str, make_next: Next, expected: int | None) -> NextSchema:
    """Return the schema that a change would make; nothing is changed.

    Raises:
        InvalidRequestError: the change is not allowed, or the topic is not typed.
        SchemaMismatchError: the newest schema of the topic has not the number `expected`.
    """
    before = await schema_of(router, topic, None)
    if expected is not None and before.number != expected:
        raise SchemaMismatchError(
            f"topic {topic!r} has schema {before.number} now, and schema {expected} was expected; look at its schema, "
            "and check the change again"
        )
    try:
        schema, changes = make_next(before)
    except SchemaError as error:
        raise InvalidRequestError(str(error)) from error
    return NextSchema(before, schema, changes)


async def evolve(router: Router, topic: str, make_next: Next, expected: int | None, *, raise_floor: bool) -> NextSchema:
    """Register the next schema of a topic.

    Args:
        expected: number of the newest schema; None: any, and the change is made again if another client's comes first.
        raise_floor: whether producers may use the new schema only.

    Raises:
        InvalidRequestError, SchemaMismatchError: as `check`; nothing is changed.
    """
    for attempt in range(ATTEMPTS_MAX):
        found = await check(router, topic, make_next, expected)
        topic_id = await typed_topic_id(router, topic)
        request = pb.SchemaChange(
            topic=topic,
            topic_id=topic_id,
            schema=message_of_schema(found.schema),
            expected_number=found.before.number,
            floor=found.schema.number if raise_floor else None,
        )
        try:
            # A repeated request with the same schema has the same answer.
            frame = await router.call_any(partial(pb.Envelope, schema_change=request), repeatable=True)
        except SchemaMismatchError:
            if expected is not None or attempt == ATTEMPTS_MAX - 1:
                raise
            continue
        router.schemas.note(topic_id, frame.envelope.schema_change_reply.schema)
        return found
    raise AssertionError("the last attempt returns or raises")


async def typed_topic_id(router: Router, topic: str) -> bytes:
    """Return the id of a typed topic.

    Raises:
        InvalidRequestError: the topic is not typed.
        UnknownTopicError: the topic does not exist.
    """
    route = await router.confirmed_topic(topic)
    if not route.schema_number:
        raise InvalidRequestError(
            f"topic {topic!r} is not typed: its values are bytes; create a topic with a schema to have rows"
        )
    return route.topic_id


def set_first_schema(
    request: pb.TopicCreate, described: Any, *, key: str | None, time: str | None, tag: str | None
) -> Schema | None:
    """Add the first schema to the request that creates a topic, and return it; None for an untyped topic.

    Raises:
        InvalidRequestError: no schema can be made of the description, or a role is given without a schema.
    """
    if described is None:
        if given := [name for name, field in (("key", key), ("time", time), ("tag", tag)) if field is not None]:
            raise InvalidRequestError(f"{', '.join(given)} name fields of a schema; pass schema=, or leave them out")
        return None
    schema = first_schema_of(described, key=key, time=time, tag=tag)
    request.schema.CopyFrom(message_of_schema(schema))
    return schema


async def check_existing_schema(router: Router, topic: Topic, wanted: Schema | None) -> None:
    """Check that the first or the newest schema of a topic has these fields; None: that the topic is not typed.

    The topic may be another client's, also without `exist_ok`: after a lost answer, an existing topic is taken for the
    created one.

    Raises:
        TopicExistsError: it has others.
    """
    if wanted is None:
        if topic.schema_number:
            raise TopicExistsError(f"topic {topic.name!r} exists and is typed; pass its schema, or use another name")
        return
    if not topic.schema_number:
        raise TopicExistsError(f"topic {topic.name!r} exists and is not typed; use another name")
    if (await router.schemas.layout(topic.topic_id, 1)).schema == wanted:
        return
    newest = await router.schemas.refresh(topic.topic_id)
    if list(map(_without_ids, newest.fields)) != list(map(_without_ids, wanted.fields)):
        raise TopicExistsError(
            f"topic {topic.name!r} exists with another schema, number {newest.number}; change it with evolve_schema, "
            "or pass the same fields"
        )


def _without_ids(field: Field) -> Field:
    return replace(field, id=0, children=tuple(map(_without_ids, field.children)))
