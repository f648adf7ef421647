"""Records of a batch that a node dropped, because their partition already has records of the same content."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidelog.model import NOT_STORED


class DroppedRecords(NamedTuple):
    """Identifies the records of a batch that a node has dropped, as far as the node reported them.

    Attributes:
        dropped: number of dropped records.
        bits: one bit for each record of the batch, the lowest of a byte first; empty if all records were dropped, or if
            the node no longer knows which.
    """

    dropped: int
    bits: bytes

    def flags(self, records: int) -> npt.NDArray[np.bool_] | None:
        """Return for each record of the batch whether it was dropped; None if unknown."""
        if self.dropped >= records:
            return np.ones(records, np.bool_)
        if len(self.bits) != -(-records // 8):
            return None
        flags = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=records, bitorder="little").astype(np.bool_)
        return flags if int(flags.sum()) == self.dropped else None


def offsets_of(base_offset: int, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the offset of each record: consecutive for stored records, `NOT_STORED` for dropped ones."""
    offsets = base_offset - 1 + np.cumsum(~flags, dtype=np.int64)
    offsets[flags] = NOT_STORED
    return offsets
