"""Detection of protobuf fields of a later version, so that no request is carried out in part."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def unknown_fields(message: Message) -> list[str]:
    """Return the unknown fields of a message and its submessages, like `field 28 of TopicConfig`."""
    found: dict[str, None] = {}
    for part in _parts(message):
        unknown = UnknownFieldSet(part)
        for at in range(len(unknown)):
            found[f"field {unknown[at].field_number} of {part.DESCRIPTOR.name}"] = None
    return [*found]


def refuse_unknown_fields(request: Message) -> None:
    """Refuse a change with unknown fields, which would be carried out in part.

    Raises:
        ProtocolError: INVALID_REQUEST, naming the fields.
    """
    unknown = unknown_fields(request)
    if unknown:
        raise ProtocolError(
            pb.INVALID_REQUEST,
            f"this node does not know {', '.join(unknown[:10])}, added by a later version: upgrade the nodes, or use a "
            "client of their version",
        )


def _parts(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        for part in value if field.is_repeated else [value]:
            yield from _parts(part)
