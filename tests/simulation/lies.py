"""Content other than the decided one with correct checksums, served by a node with broken memory or software.

Only the digest in the decision tells it from the truth.
"""

from __future__ import annotations

from collections.abc import Sequence

from crc32c import crc32c

from tidelog_broker.core.replication.ports import Position
from tidelog_proto.batch.header import stamp_owner, unpack_header
from tidelog_proto.limits import HEADER_BYTES


def lie(
    batches: Sequence[memoryview], base: Position, end: Position
) -> tuple[Sequence[memoryview], Position, Position]:
    """Return a read with another body in its first batch."""
    digest = base.digest
    told: list[memoryview] = []
    for number, batch in enumerate(batches):
        header, data = unpack_header(batch), bytearray(batch)
        if number == 0:
            data[-1] ^= 1
            data[:HEADER_BYTES] = header._replace(body_crc=crc32c(memoryview(data)[HEADER_BYTES:])).pack()
        digest = stamp_owner(
            data,
            base_offset=header.base_offset,
            append_timestamp_us=header.append_timestamp_us,
            epoch=header.epoch,
            owner_incarnation=header.owner_incarnation,
            previous_digest=digest,
        )
        told.append(memoryview(data))
    return told, base, Position(end.offset, digest)
