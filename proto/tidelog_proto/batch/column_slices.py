"""Positions of keys and tags in the bytes of a stored batch, found without pyarrow if possible.

pyarrow needs some 30 µs to read a message of any size, which dominates the cost of indexing small batches. The body of
an uncompressed batch is the memory that Arrow arrays would reference, so the metadata of the message contains the
positions of a column's offsets and data. Parsed metadata is cached by its bytes. pyarrow decodes compressed and derived
batches.

Key and tag of a typed batch lie outside its struct: the key before it, the tag in the last column. So the schema is
needed only where pyarrow decodes the batch.

The batch was verified when the node received it; the caller checks its CRC32C.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.batch.ipc_message import (
    METADATA_BYTES_MAX,
    PREFIX_BYTES,
    TYPED_METADATA_BYTES_MAX,
    TYPED_VECTOR_ITEMS_MAX,
    describe,
    metadata_bytes,
)
from tidelog_proto.batch.key_hash import Slices, slices_of
from tidelog_proto.batch.record_batch import decode_columns
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.limits import HEADER_BYTES

TextColumn = Literal["key", "tag"]
"""A column that is indexed."""

COLUMN_FLAG: Final[dict[TextColumn, int]] = {"key": Flags.KEY, "tag": Flags.TAG}

_NONE: Final = np.empty(0, np.int64)


class _Place(NamedTuple):
    """Positions of a column's buffers in a message, in bytes."""

    validity_at: int
    offsets_at: int
    data_at: int
    has_nulls: bool


def column_slices(
    window: npt.NDArray[np.uint8], at: int, header: BatchHeader, column: TextColumn, layout: RowLayout | None = None
) -> Slices:
    """Return the non-null values of a column of a batch.

    Args:
        window: bytes that contain the whole batch.
        at: position of the batch in `window`.
        column: the column; a missing one has no values.
        layout: of the schema of a typed batch; needed if the batch is compressed or derived.

    Returns:
        Slices of `window`, or of other memory if the batch had to be decoded.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode; UNSUPPORTED_BATCH if a layout is needed.
    """
    if not header.flags & COLUMN_FLAG[column] or not header.record_count:
        return Slices(window, _NONE, _NONE)
    message_at = at + HEADER_BYTES
    message = window.data[message_at : at + header.length]
    if header.codec or header.flags & Flags.DERIVED:
        return slices_of(decode_columns(header, message, layout).column(column).drop_null())
    bytes_max = TYPED_METADATA_BYTES_MAX if header.schema_id else METADATA_BYTES_MAX
    metadata = bytes(message[PREFIX_BYTES : PREFIX_BYTES + metadata_bytes(message, bytes_max)])
    place = _place(metadata, len(message), header.flags, column)
    count = header.record_count
    bounds = np.frombuffer(message, np.int32, count + 1, place.offsets_at).astype(np.int64)
    starts, lengths = bounds[:-1] + (message_at + place.data_at), np.diff(bounds)
    if place.has_nulls:
        bits = np.frombuffer(message, np.uint8, -(-count // 8), place.validity_at)
        there = np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)
        starts, lengths = starts[there], lengths[there]
    return Slices(window, starts, lengths)


@lru_cache(maxsize=1024)
def _place(metadata: bytes, message_bytes: int, flags: int, column: TextColumn) -> _Place:
    description = describe(metadata, message_bytes, TYPED_VECTOR_ITEMS_MAX)
    # Only the timestamps, one array in two buffers, may precede the keys; tags are the last column.
    node, buffer = (1, 2) if flags & Flags.TIMESTAMP else (0, 0)
    if column == "tag":
        node, buffer = len(description.nodes) - 1, len(description.buffers) - 3
    (validity, _), (offsets, _), (data, _) = description.buffers[buffer : buffer + 3]
    at = description.body_at
    return _Place(at + validity, at + offsets, at + data, description.nodes[node][1] > 0)
