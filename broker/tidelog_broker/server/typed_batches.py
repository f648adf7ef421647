"""Checks of batches from producers, and for readers, of typed topics.

The schema that the header names is compared with the topic's schemas first, so that a producer learns which schema to
use; then the whole batch is validated (`tidelog_proto.batch.typed_verification`).
"""

from __future__ import annotations

from tidelog_broker.core.schemas import TopicSchemas
from tidelog_broker.partition.partition import Partition
from tidelog_broker.wire.connection import Connection
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


class UnknownSchemaError(ProtocolError):
    """A batch has a schema that this node does not know, and that may be in `__meta`.

    Attributes:
        number: of the schema.
    """

    def __init__(self, number: int) -> None:
        super().__init__(pb.EPOCH_CHANGING, f"this node does not know schema {number} of the topic yet; retry")
        self.number = number


def check_schema(data: memoryview, topic: str, schemas: TopicSchemas, floor: int) -> None:
    """Check that the header of a batch names a schema that producers may use.

    Args:
        floor: the lowest schema number for producers.

    Raises:
        UnknownSchemaError: this node does not know the schema.
        ProtocolError: SCHEMA_MISMATCH, with the remedy; or as `unpack_header`.
    """
    header = unpack_header(data, typed=True)
    number = header.schema_id
    if not number:
        raise ProtocolError(
            pb.SCHEMA_MISMATCH,
            f"topic {topic!r} is typed, and the batch has values without a schema; send rows of schema "
            f"{schemas.newest_number}, with a client and a call that support typed topics",
        )
    digest = schemas.digest(number)
    if digest is None:
        raise UnknownSchemaError(number)
    if header.schema_digest != digest:
        raise ProtocolError(
            pb.SCHEMA_MISMATCH,
            f"topic {topic!r}: the batch has schema {number} with digest {header.schema_digest:#010x}, and that of the "
            f"topic has {digest:#010x}; read the topic's schemas and encode the records again",
        )
    if number < floor:
        raise ProtocolError(
            pb.SCHEMA_MISMATCH,
            f"topic {topic!r}: the batch has schema {number}, and producers must use {floor} or a newer one; read the "
            "topic's schemas and encode the records again",
        )


def typed_in_untyped(topic: str) -> ProtocolError:
    """Return the error for a typed batch in an untyped topic."""
    return ProtocolError(
        pb.SCHEMA_MISMATCH,
        f"topic {topic!r} is not typed, and the batch has a schema; send values without a schema, or create a typed "
        "topic",
    )


def check_reader(connection: Connection, partition: Partition) -> None:
    """Refuse to send batches of a typed topic to a client that does not read them.

    Raises:
        ProtocolError: UNSUPPORTED_BATCH.
    """
    if partition.schemas is not None and not connection.reads_typed and connection.peer_id is None:
        raise ProtocolError(
            pb.UNSUPPORTED_BATCH,
            f"topic {partition.state.topic.name!r} is typed, and the client {connection.software!r} does not read "
            "typed batches; update the client, or use one that announces typed_topics in HELLO",
        )
