"""Registration of schemas by the owner of `__meta`, one change at a time (see `controller`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_broker.core.schema_rules import check_compactable, first_schema_of
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema

SCHEMAS_BYTES_MAX: Final = 64 * MIB
"""Maximum size of the schemas of all topics; every node keeps them in memory."""


class SchemaChanges:
    """Makes the records of new schemas.

    Args:
        now_us: the wall clock, in microseconds since 1970.

    Attributes:
        registry: the schemas that this node knows.
        bytes_max: maximum size of the records of all topics.
    """

    def __init__(self, schemas: SchemaRegistry, *, now_us: Callable[[], int]) -> None:
        self.registry = schemas
        self._now_us = now_us
        self.bytes_max = SCHEMAS_BYTES_MAX

    def first(self, request: pb.TopicCreate, config: pb.TopicConfig) -> Schema | None:
        """Return the first schema of a new topic, and make its configuration typed; None for an untyped one.

        Raises:
            ProtocolError: INVALID_REQUEST.
        """
        schema = first_schema_of(request)
        if schema is not None:
            check_compactable(config.cleanup, schema, request.name)
            config.typed, config.schema_floor = True, 1
        return schema

    def record(self, topic_id: bytes, schema: Schema, caller: pb.Caller) -> pb.SchemaRecord:
        """Return the record of a new schema.

        Raises:
            ProtocolError: QUOTA_EXCEEDED if the schemas of the cluster would be too large.
        """
        record = pb.SchemaRecord(
            topic_id=topic_id,
            schema=message_of_schema(schema),
            creator=caller.principal,
            created_us=self._now_us(),
        )
        size_bytes = self.registry.size_bytes
        if size_bytes + record.ByteSize() > self.bytes_max:
            raise ProtocolError(
                pb.QUOTA_EXCEEDED,
                f"the schemas of the cluster have {size_bytes} bytes, and {record.ByteSize()} more would exceed the "
                f"maximum of {self.bytes_max}; delete typed topics that are not used any more",
            )
        return record
