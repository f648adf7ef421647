"""Rules of the schemas of a topic: the first one, the next one, and the lowest number for producers."""

from __future__ import annotations

from typing import Final

from tidelog_broker.core.schemas import TopicSchemas
from tidelog_proto import broker_pb2 as pb
from tidelog_proto import schema_pb2
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.evolution_rules import changes_between
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import schema_of_message
from tidelog_proto.schema.topic_schema import Schema

COMPACTING: Final = frozenset({pb.COMPACT, pb.COMPACT_AND_DELETE})


def first_schema_of(request: pb.TopicCreate) -> Schema | None:
    """Return the first schema of a new topic; None for an untyped one.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if request.config.typed or request.config.schema_floor:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"topic {request.name!r}: typed and schema_floor cannot be set; a topic is typed if the request has a "
            "schema",
        )
    if not request.HasField("schema"):
        return None
    schema = _parsed(request.schema)
    if schema.number != 1:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"the first schema of a topic must have the number 1, got {schema.number}"
        )
    return schema


def check_compactable(cleanup: pb.Cleanup, schema: Schema, topic: str) -> None:
    """Refuse a compacted topic whose schema has no required key.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    key = schema.field_of(Role.KEY)
    if cleanup in COMPACTING and (key is None or not key.required):
        what = "no key field" if key is None else f"the optional key field {key.name!r}"
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"topic {topic!r} is compacted by key, and its schema has {what}; make a required field the key, or set "
            "cleanup to delete",
        )


def next_schema_of(change: pb.SchemaChange, schemas: TopicSchemas) -> Schema | None:
    """Return the schema that a change registers; None if that schema exists, or without a schema.

    Raises:
        ProtocolError: SCHEMA_MISMATCH if the newest schema is not the expected one; INVALID_REQUEST if the new one may
            not follow it.
    """
    newest_number = schemas.newest_number
    if not change.HasField("schema"):
        if not change.HasField("floor"):
            raise ProtocolError(pb.INVALID_REQUEST, "the change of schemas is empty; set `schema`, `floor` or both")
        if change.expected_number != newest_number:
            raise mismatch(change, newest_number)
        return None
    number = change.schema.number
    if number != change.expected_number + 1:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the new schema has the number {number}, and the expected newest one is {change.expected_number}; number "
            "it one higher",
        )
    if is_repeated(change, schemas):
        return None
    if change.expected_number != newest_number:
        raise mismatch(change, newest_number)
    schema = _parsed(change.schema)
    try:
        changes_between(schemas.schema(newest_number), schema)
    except SchemaError as error:
        raise ProtocolError(pb.INVALID_REQUEST, f"topic {change.topic!r}: {error}") from error
    return schema


def is_repeated(change: pb.SchemaChange, schemas: TopicSchemas) -> bool:
    """Return whether the schema of a change is registered: an earlier attempt's answer was lost."""
    number = change.schema.number
    return number in schemas and schemas.record(number).schema == change.schema


def checked_floor(change: pb.SchemaChange, current: int, newest_number: int) -> int:
    """Return the lowest schema number for producers after a change.

    Args:
        current: the lowest number before the change.
        newest_number: number of the newest schema after the change.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    if not change.HasField("floor"):
        return current
    if not 1 <= change.floor <= newest_number:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the lowest schema number for producers must be 1 to {newest_number}, got {change.floor}",
        )
    return change.floor


def mismatch(change: pb.SchemaChange, newest_number: int) -> ProtocolError:
    """Return the error for a change that expects another newest schema."""
    return ProtocolError(
        pb.SCHEMA_MISMATCH,
        f"topic {change.topic!r} has schema {newest_number}, and the change expects {change.expected_number} as the "
        "newest one; read the topic's schemas and make the change again",
    )


def _parsed(message: schema_pb2.TopicSchema) -> Schema:
    try:
        return schema_of_message(message)
    except SchemaError as error:
        raise ProtocolError(pb.INVALID_REQUEST, str(error)) from error
