"""SCHEMA_CHANGE and SCHEMAS: registration and reading of the schemas of typed topics.

Every node answers SCHEMAS from its copy of `__meta`. The copy may lag, so before a number is reported as unknown the
node reads `__meta` up to the end that the owner of `__meta` has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.core.schemas import TopicSchemas
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.meta_freshness import denial
from tidelog_broker.server.forwarding import at_owner
from tidelog_broker.server.handlers.metadata import is_current
from tidelog_broker.server.propagation import wait_until_applied
from tidelog_broker.wire.connection import Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PAGE_BYTES, SCHEMAS_PER_TOPIC_MAX
from tidelog_proto.names import INTERNAL_PREFIX

PAGE_SCHEMAS: Final = 64
"""Maximum number of schemas in an answer."""


async def change(broker: Broker, request: Request) -> None:
    """Handle SCHEMA_CHANGE.

    Raises:
        ProtocolError: UNKNOWN_TOPIC, FORBIDDEN, INVALID_REQUEST, SCHEMA_MISMATCH, QUOTA_EXCEEDED.
    """
    message = request.envelope.schema_change
    if message.topic.startswith(INTERNAL_PREFIX):
        raise ProtocolError(pb.FORBIDDEN, f"{message.topic} is an internal topic, which has no schemas")

    async def local(envelope: pb.Envelope) -> pb.Envelope:
        reply = await broker.controller.change_schema(envelope.schema_change, envelope.caller)
        return pb.Envelope(schema_change_reply=reply)

    reply = await at_owner(broker, META_KEY, request, local)
    number, floor = reply.schema_change_reply.schema.number, reply.schema_change_reply.floor
    topic = broker.topics.find(message.topic)

    def is_applied() -> bool:
        config = None if topic is None else broker.topics.config_of(topic.topic_id)
        if topic is None or config is None:
            return True
        return number in broker.schemas.of(topic.topic_id) and config.schema_floor == floor

    await wait_until_applied(is_applied)
    request.reply(reply)


async def schemas(broker: Broker, request: Request) -> None:
    """Handle SCHEMAS.

    Raises:
        ProtocolError: UNKNOWN_TOPIC; INVALID_REQUEST for an untyped topic, or numbers that are not ascending;
            UNKNOWN_SCHEMA; EPOCH_CHANGING if the owner of `__meta` cannot be asked about an unknown number.
    """
    message = request.envelope.schemas
    _check_numbers(message)
    current = await broker.meta_freshness.refresh_for([(message.topic_id, 0)])
    try:
        record = broker.topics.with_id(message.topic_id)
    except ProtocolError as error:
        raise denial(error, current=current) from error
    if not record.config.typed:
        raise ProtocolError(pb.INVALID_REQUEST, f"topic {record.name!r} is not typed, so it has no schemas")
    known = broker.schemas.of(message.topic_id)
    unconfirmed = False
    if message.confirmed or _missing(message, known) or message.first_number > known.newest_number:
        unconfirmed = not await is_current(broker)
    if missing := _missing(message, known):
        raise unknown_schema(record.name, missing, known, current=not unconfirmed)
    floor = broker.topics.with_id(message.topic_id).config.schema_floor
    reply = _page(message, known)
    reply.newest_number, reply.floor, reply.unconfirmed = known.newest_number, floor, unconfirmed and message.confirmed
    request.reply(pb.Envelope(schemas_reply=reply))


def _check_numbers(message: pb.Schemas) -> None:
    numbers = message.numbers
    if len(numbers) > SCHEMAS_PER_TOPIC_MAX or list(numbers) != sorted(set(numbers)):
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"the numbers of schemas must be at most {SCHEMAS_PER_TOPIC_MAX} ascending numbers, got {len(numbers)}",
        )


def _wanted(message: pb.Schemas, known: TopicSchemas) -> Sequence[int]:
    return message.numbers or range(max(1, message.first_number), known.newest_number + 1)


def _missing(message: pb.Schemas, known: TopicSchemas) -> int:
    """Return the first requested number that this node does not know; 0 if it knows all."""
    return next((number for number in _wanted(message, known) if number not in known), 0)


def _page(message: pb.Schemas, known: TopicSchemas) -> pb.SchemasReply:
    """Return as many schemas as fit an answer, at least one if any is requested."""
    reply = pb.SchemasReply()
    size_bytes = 0
    for number in _wanted(message, known):
        schema = known.record(number).schema
        size_bytes += schema.ByteSize()
        if reply.schemas and (size_bytes > PAGE_BYTES or len(reply.schemas) == PAGE_SCHEMAS):
            reply.next_number = number
            break
        reply.schemas.append(schema)
    return reply


def unknown_schema(topic: str, number: int, known: TopicSchemas, *, current: bool) -> ProtocolError:
    """Return the error for an unknown schema number; retriable unless `__meta` is current at this node."""
    if current:
        return ProtocolError(
            pb.UNKNOWN_SCHEMA,
            f"topic {topic!r} has no schema {number}; its newest one is {known.newest_number}, so use that",
        )
    return ProtocolError(
        pb.EPOCH_CHANGING,
        f"this node does not know schema {number} of topic {topic!r}, and cannot reach the owner of __meta to ask for "
        "it; retry",
    )
