"""Verification of batches that another node sent as a copy, before they are written.

`EpochStore.append` only asserts these conditions, because an owner stamps the batches that it appends; batches from
another node that violate one raise an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer, Flags, digest_after, unpack_header
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.typed_verification import verify_typed_stored
from tidelog_proto.batch.verification import verify_stored
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES


class LogPosition(NamedTuple):
    """A batch boundary of an epoch: the offset, and the running digest of all batches of the epoch before it."""

    offset: int
    digest: int


def check_copied(
    batches: Sequence[Buffer], *, epoch: int, position: LogPosition, layouts: Layouts | None = None
) -> LogPosition:
    """Return the end of `batches` if they are complete and valid and continue an epoch at `position` without a gap.

    Args:
        layouts: of the batches of a typed topic, see `HeldEpochs`. Only derived batches need them.

    Raises:
        ProtocolError: CORRUPT_BATCH and others of `unpack_header`: none of the batches may be used. EPOCH_CHANGING if
            this node does not know the schema of a derived batch yet.
    """
    offset, digest = position
    for batch in batches:
        header = unpack_header(batch, typed=layouts is not None)
        if header.length != len(batch):
            raise _corrupt(
                f"received {len(batch)} bytes of a batch at offset {header.base_offset}, its header declares "
                f"{header.length}"
            )
        if header.epoch != epoch:
            raise _corrupt(
                f"received a batch of epoch {header.epoch} at offset {header.base_offset}, expected epoch {epoch}"
            )
        if header.base_offset != offset:
            raise _corrupt(f"received a batch at offset {header.base_offset}, expected {offset}")
        if (found_crc := crc32c(memoryview(batch)[HEADER_BYTES:])) != header.body_crc:
            raise _corrupt(
                f"the header of the batch at offset {offset} declares CRC32C {header.body_crc:#010x} for the body, "
                f"which has {found_crc:#010x}"
            )
        if header.flags & Flags.DERIVED:
            # No owner has verified a derived batch, which a node has built from verified ones, so check all of it.
            if layouts is None:
                verify_stored(batch)
            else:
                verify_typed_stored(batch, layouts)
        digest = digest_after(batch, 0, digest)
        if header.digest != digest:
            raise _corrupt(
                f"the batch at offset {offset} has digest {header.digest:#x}, expected {digest:#x} after the batches "
                "on this node"
            )
        offset = header.end_offset
    return LogPosition(offset, digest)


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
