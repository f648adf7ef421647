"""The readable extents of a log: those of its epochs, one part at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from tidelog_broker.storage.engine.reading import Extent
from tidelog_broker.storage.io.errors import DamagedError, StorageError
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


def readable_extents(held: HeldEpochs, offset: int, limit_offset: int) -> Generator[Extent]:
    """Yield the readable extents from the batch that holds `offset` on, oldest first, while they are contiguous."""
    position = offset
    for epoch in held.epochs:
        if epoch.end_offset <= position:
            continue
        if position >= limit_offset:
            return
        end_offset = epoch.end_offset
        with closing(epoch.reader.extents(position, limit_offset)) as extents:
            for extent in extents:
                yield extent
                position = extent.end_offset
        if position < end_offset:
            return


def readable_extents_reversed(held: HeldEpochs, limit_offset: int) -> Generator[Extent]:
    """Yield the readable extents below `limit_offset`, newest first."""
    for epoch in reversed(held.epochs):
        with closing(epoch.reader.extents_reversed(limit_offset)) as extents:
            yield from extents


@contextmanager
def checking(extent: Extent, slot: int, batch: memoryview) -> Iterator[None]:
    """Add the position to errors about a batch that is corrupt or not the one that the index lists.

    A failed read of the batch's body is not damage, and neither is a schema that this node does not know yet, so a
    `StorageError` and EPOCH_CHANGING are passed on.

    Raises:
        DamagedError: the batch is corrupt.
    """
    try:
        found, expected = unpack_header(batch, typed=True).base_offset, extent.offset_of(slot)
        if found != expected:
            raise DamagedError.at(
                *extent.place_of(slot), f"the batch has base offset {found}, but the index lists {expected}"
            )
        yield
    except StorageError:
        raise
    except ProtocolError as error:
        if error.code == pb.EPOCH_CHANGING:
            raise  # This node does not know the schema of the batch yet.
        raise DamagedError.at(*extent.place_of(slot), error.message) from error
