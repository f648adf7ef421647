"""The head of an Arrow message of this build (prefix and metadata), into which numbers are filled."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from tidelog_proto.batch.compression import encode_body
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.ipc_message import (
    METADATA_BYTES_MAX,
    PREFIX_BYTES,
    TYPED_METADATA_BYTES_MAX,
    NumberPlaces,
    metadata_bytes,
    number_places,
)


class MessageTemplate(NamedTuple):
    """A head, encoded for one row.

    Attributes:
        head: the bytes.
        places: positions in the head of the numbers that depend on rows.
    """

    head: bytes
    places: NumberPlaces


def message_template(schema: pa.Schema, codec: Codec, *, typed: bool = False) -> MessageTemplate:
    """Return the head of messages with the columns of a schema.

    A null in each column has a validity bitmap, so that the length of the body is not 0 and is stored.
    """
    row = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    message, _ = encode_body(row, codec, typed=typed)
    head = bytes(
        message[: PREFIX_BYTES + metadata_bytes(message, TYPED_METADATA_BYTES_MAX if typed else METADATA_BYTES_MAX)]
    )
    return MessageTemplate(head, NumberPlaces(*(PREFIX_BYTES + at for at in number_places(head[PREFIX_BYTES:]))))
