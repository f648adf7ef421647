"""Files with the schemas of typed topics, for tools that read data files without a cluster.

Each line is a JSON object of one topic: its name, its id in hex, and its schemas as messages in base64.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from tidelog_proto import schema_pb2
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.schema_messages import message_of_schema, schema_of_message
from tidelog_proto.schema.topic_schema import Schema


def schemas_line(topic: str, topic_id: bytes, schemas: Sequence[Schema]) -> str:
    """Return the line of a topic, without a line break."""
    messages = [base64.b64encode(message_of_schema(schema).SerializeToString()).decode() for schema in schemas]
    return json.dumps({"topic": topic, "topic_id": topic_id.hex(), "schemas": messages})


def schemas_in(text: str) -> dict[bytes, list[Schema]]:
    """Return topic id -> schemas of the lines of a file.

    Raises:
        SchemaError: a line is not the schemas of a topic.
    """
    found: dict[bytes, list[Schema]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            document: Any = json.loads(line)
            topic_id = bytes.fromhex(document["topic_id"])
            messages = [base64.b64decode(each, validate=True) for each in document["schemas"]]
            schemas = [schema_of_message(schema_pb2.TopicSchema.FromString(each)) for each in messages]
        except (ValueError, TypeError, KeyError, RecursionError, binascii.Error, DecodeError) as error:
            raise SchemaError(
                f"line {number} is not the schemas of a topic: {error}; write the file with: tidelog topic schema show "
                "TOPIC --all --as file"
            ) from error
        found.setdefault(topic_id, []).extend(schemas)
    return found
