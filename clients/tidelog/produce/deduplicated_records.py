"""Which records of a batch a node has dropped, as their partition had their content already."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tidelog.model import NOT_STORED


class DroppedRecords(NamedTuple):
    """What a node says of a batch: how many records it has dropped, and which.

    Attributes:
        dropped: how many.
        bits: which, a bit a record, the lowest of a byte first; empty where all were, or it is not known any more.
    """

    dropped: int
    bits: bytes

    def flags(self, records: int) -> npt.NDArray[np.bool_] | None:
        """Return for each of a batch's records whether it was dropped; None where that is not known."""
        if self.dropped >= records:
            return np.ones(records, np.bool_)
        if len(self.bits) != -(-records // 8):
            return None
        flags = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=records, bitorder="little").astype(np.bool_)
        return flags if int(flags.sum()) == self.dropped else None


def offsets_of(base_offset: int, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the offset of each record: those that are left follow each other; `NOT_STORED` for the others."""
    offsets = base_offset - 1 + np.cumsum(~flags, dtype=np.int64)
    offsets[flags] = NOT_STORED
    return offsets
