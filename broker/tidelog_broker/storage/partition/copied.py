"""Checking batches that another node sent as a copy, before they are written.

The log's own `append` asserts what is wrong here: the owner stamps its groups itself, and a wrong one there is a bug.
Bytes of a peer raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer, Flags, digest_after, unpack_header
from tidelog_proto.batch.verification import verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES


class LogPosition(NamedTuple):
    """A batch boundary of an epoch: the offset, and the running digest of everything in the epoch before it."""

    offset: int
    digest: int


def check_copied(batches: Sequence[Buffer], *, epoch: int, position: LogPosition) -> LogPosition:
    """Return where `batches` end, if they are whole, sound, and continue an epoch at `position` without a hole.

    Raises:
        ProtocolError: CORRUPT_BATCH and others of `unpack_header`: nothing of them may be used.
    """
    offset, digest = position
    for batch in batches:
        header = unpack_header(batch)
        if header.length != len(batch):
            raise _corrupt(f"{len(batch)} bytes came for a batch of {header.length}")
        if header.epoch != epoch:
            raise _corrupt(f"a batch of epoch {header.epoch} came for epoch {epoch}")
        if header.base_offset != offset:
            raise _corrupt(f"a batch at offset {header.base_offset} came where {offset} is next")
        if crc32c(memoryview(batch)[HEADER_BYTES:]) != header.body_crc:
            raise _corrupt(f"the body of the batch at offset {offset} does not match its CRC32C")
        if header.flags & Flags.DERIVED:
            verify_stored(batch)  # no owner has: it was made by a node, from what one had verified
        digest = digest_after(batch, 0, digest)
        if header.digest != digest:
            raise _corrupt(f"the running digest of the batch at offset {offset} does not continue the copy here")
        offset = header.end_offset
    return LogPosition(offset, digest)


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
