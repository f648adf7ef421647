"""Estimates of how many stored bytes hold a number of records, by partition.

A client limits a fetch by a number of records, but a node is asked for a number of bytes. Without an estimate a request
asks for as many bytes as large records need, so surplus small records are transferred and discarded. The estimate of a
partition comes from its last reads. It is raised when it is too low, and lowered gradually when it is at least twice
too high; otherwise it is kept, so that requests for the same records ask for the same number of bytes and can share a
read. A reader that receives too little reads again without an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tidelog_proto.batch.record_batch import RecordBatch

PARTITIONS_MAX: Final = 256
"""Maximum number of partitions with an estimate; a new one evicts the partition whose estimate was created first."""
DECREASE_SHARE: Final = 8
"""One read lowers an estimate by at most the estimate divided by this number, so single small reads hardly matter."""


class _Estimate(NamedTuple):
    """Upper estimates of the stored bytes of a record, with its share of the batch's header, and of a batch."""

    record_bytes: int
    batch_bytes: int


class ReadSizes:
    """Estimates how many bytes the next reads of one caller need, from earlier reads of the same partitions."""

    def __init__(self) -> None:
        self._estimates: dict[tuple[str, int], _Estimate] = {}

    def __len__(self) -> int:
        """Return the number of partitions with an estimate."""
        return len(self._estimates)

    def likely(self, topic: str, partition: int, records: int, bytes_max: int) -> int:
        """Return how many bytes probably hold the next `records`, at most `bytes_max`; without an estimate `bytes_max`.

        The first record may be anywhere in its batch, so the size of one batch is added.
        """
        estimate = self._estimates.get((topic, partition))
        if estimate is None:
            return bytes_max
        return min(bytes_max, records * estimate.record_bytes + estimate.batch_bytes)

    def note(self, topic: str, partition: int, batches: Sequence[RecordBatch]) -> None:
        """Update the estimate of a partition from batches of a read."""
        lengths = [batch.header.length for batch in batches]
        records = sum(batch.header.record_count for batch in batches)
        if not records:
            return
        place = topic, partition
        found = _Estimate(-(-sum(lengths) // records), max(lengths))
        known = self._estimates.get(place)
        if known is None:
            if len(self._estimates) >= PARTITIONS_MAX:
                del self._estimates[next(iter(self._estimates))]
            self._estimates[place] = found
        else:
            record_bytes, batch_bytes = map(_adjusted, known, found)
            self._estimates[place] = _Estimate(record_bytes, batch_bytes)


def _adjusted(known: int, found: int) -> int:
    """Return `found` if `known` is lower, `known` less an eighth if it is at least twice as high, else `known`."""
    if found <= known < 2 * found:
        return known
    return max(found, known - known // DECREASE_SHARE)
