"""Fields of typed topics that a reader requests of nodes, bound to the newest schema of each topic.

A node omits other fields if it can. Nodes ignore ids that they do not know, and those that do not support the request
ignore it, so readers take what they need from what arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags
from tidelog_proto.limits import FIELD_ID_MAX, SCHEMA_LEAVES_MAX
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

_FLAG_OF_ROLE: Final = {Role.TIME: Flags.TIMESTAMP, Role.KEY: Flags.KEY, Role.TAG: Flags.TAG}


async def newest_schema(router: Router, topic: str) -> tuple[bytes, Schema | None]:
    """Return the id of a topic, and its newest known schema; None if the topic is not typed.

    Raises:
        UnknownTopicError: the topic does not exist.
        TidelogError: no node answered.
    """
    route = router.metadata.topic(topic) or await router.topic(topic)
    if not route.schema_number:
        return route.topic_id, None
    newest = router.schemas.newest(route.topic_id)
    if newest is None or newest.number < route.schema_number:
        newest = await router.schemas.refresh(route.topic_id)
    return route.topic_id, newest


async def request_fields(router: Router, topic: str, fields: Sequence[str | int], message: pb.Projection) -> None:
    """Add fields to the projection of a fetch, and the columns of those that have a role.

    Args:
        fields: names of the newest schema, or ids.

    Raises:
        InvalidRequestError: the topic is not typed, or a field does not exist.
        TidelogError: as `newest_schema`.
    """
    check_fields(fields)
    topic_id, schema = await newest_schema(router, topic)
    if schema is None:
        raise InvalidRequestError(f"topic {topic!r} is not typed: its values are bytes; leave fields= out")
    names = {each for each in fields if isinstance(each, str)}
    if not names <= {field.name for field in schema.fields}:
        schema = await router.schemas.refresh(topic_id)
    by_name = {field.name: field.id for field in schema.fields}
    if unknown := sorted(names - by_name.keys()):
        raise InvalidRequestError(
            f"{unknown} are not fields of schema {schema.number} of topic {topic!r}; it has {sorted(by_name)}"
        )
    add_fields(message, schema, [by_name[each] if isinstance(each, str) else each for each in fields])


def check_fields(fields: Sequence[str | int]) -> None:
    """Check the argument `fields` of a fetch without the schema.

    Raises:
        InvalidRequestError: it is not a list of names and ids, or too long.
    """
    if isinstance(fields, str) or not all(isinstance(each, (str, int)) for each in fields):
        raise InvalidRequestError(f"fields must be a list of names or ids of fields, got {fields!r}")
    if len(set(fields)) > SCHEMA_LEAVES_MAX:
        raise InvalidRequestError(
            f"at most {SCHEMA_LEAVES_MAX} fields can be requested, got {len(set(fields))}; leave fields= out to get all"
        )
    if wrong := [each for each in fields if isinstance(each, int) and not 0 < each <= FIELD_ID_MAX]:
        raise InvalidRequestError(f"ids of fields are 1 to {FIELD_ID_MAX}, got {wrong}")


def add_fields(message: pb.Projection, schema: Schema, ids: Iterable[int]) -> None:
    """Add fields to a projection: ids of fields without a role, columns for those with one.

    The column `value` is always requested, because it distinguishes rows from tombstones.
    """
    roles = {field.id: field.role for field in schema.fields if field.role is not Role.NONE}
    wanted = dict.fromkeys(ids)
    message.columns |= Flags.VALUE | sum(_FLAG_OF_ROLE[roles[each]] for each in wanted if each in roles)
    message.fields.SetInParent()
    message.fields.ids.extend(each for each in wanted if each not in roles)
