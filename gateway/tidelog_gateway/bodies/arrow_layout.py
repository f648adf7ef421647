"""The layout of a record batch as Arrow's own writer encodes it, to read its description in one step.

The description of a record batch is a flatbuffer; parsing one from an untrusted source takes 25 reads. Arrow's writer
encodes all uncompressed batches of one schema in the same way, apart from a few numbers at fixed positions. A sample
batch, encoded with the schema, shows these positions: a description whose other bytes are equal to those of the sample
has its numbers at the same positions.

Descriptions of other writers are parsed by `ipc_message.describe`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidelog_gateway.budget.request_budget import Body
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.ipc_message import PREFIX_BYTES, describe, metadata_bytes, number_places

_SAMPLE: Final = columns_of([b"v"], keys=[b"k"], timestamps_us=[0], headers=[[("h", b"v")]], tags=["t"])
_END: Final = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of an Arrow IPC stream: the continuation marker and a length of zero."""


class PlainBatch(NamedTuple):
    """The only record batch of a stream, not yet decoded.

    Attributes:
        message: position of the batch in the stream, from its continuation marker to the end of its body.
        rows: number of rows that the batch announces.
        size_bytes: total size of the batch's buffers.
    """

    message: slice
    rows: int
    size_bytes: int


class BatchLayout:
    """The layout of record batches with one schema.

    Args:
        schema: canonical columns in any order.
    """

    __slots__ = ("_constants", "_constants_of", "_numbers_of", "_parts")

    def __init__(self, schema: pa.Schema) -> None:
        columns: list[Any] = [_SAMPLE.column(name) for name in schema.names]
        message = memoryview(pa.RecordBatch.from_arrays(columns, schema=schema).serialize()).cast("B")
        head = bytes(message[: PREFIX_BYTES + metadata_bytes(message)])
        description = describe(head[PREFIX_BYTES:], len(message))
        places = number_places(head[PREFIX_BYTES:])
        vectors = {
            places.body_length_at: 1,
            places.record_count_at: 1,
            places.nodes_at: 2 * len(description.nodes),
            places.buffers_at: 2 * len(description.buffers),
        }
        form, end, index = "<", 0, 0
        constants: list[int] = []
        indexes: dict[int, range] = {}
        for place, count in sorted(vectors.items()):
            at = PREFIX_BYTES + place
            form += f"{at - end}s{count}q"
            constants.append(index)
            indexes[place] = range(index + 1, index + 1 + count)
            end, index = at + count * 8, index + 1 + count
        form += f"{len(head) - end}s"
        constants.append(index)
        self._parts = struct.Struct(form)
        self._constants_of: Callable[[tuple[Any, ...]], Any] = itemgetter(*constants)
        self._constants = self._constants_of(self._parts.unpack(head))
        self._numbers_of: Callable[[tuple[Any, ...]], Any] = itemgetter(
            *indexes[places.body_length_at], *indexes[places.record_count_at], *indexes[places.buffers_at]
        )

    def only_batch(self, body: Body, at: int) -> PlainBatch | None:
        """Return the batch at a position of a stream if it has this layout and the stream ends after it.

        Return None for any other stream, which the general parser then reads or refuses.
        """
        if len(body) < at + self._parts.size:
            return None
        parts = self._parts.unpack_from(body, at)
        if self._constants_of(parts) != self._constants:
            return None
        body_bytes, rows, *buffers = self._numbers_of(parts)
        body_at = at + self._parts.size
        end = body_at + body_bytes
        if rows <= 0 or body_bytes < 0 or end + len(_END) != len(body) or body[end:] != _END:
            return None
        size_bytes = 0
        for offset, stored_bytes in zip(buffers[::2], buffers[1::2], strict=True):
            if offset < 0 or not 0 <= stored_bytes <= body_bytes - offset:
                return None
            size_bytes += stored_bytes
        return PlainBatch(slice(at, end), rows, size_bytes)
