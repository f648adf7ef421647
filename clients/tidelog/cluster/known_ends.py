"""How far partitions certainly reach, as this client was told: by acknowledgements, by owners, and by what it reads.

A node that lags answers a read as if the log ended earlier. Who knows better does not take that for the end; it counts
within an epoch only, because another epoch may have begun without what was lost with the last one's replicas.
"""

from __future__ import annotations

from typing import Final

PARTITIONS_MAX: Final = 65_536
"""So many partitions are remembered: those that were heard of last."""


class Ends:
    """The ends of one client's partitions."""

    def __init__(self) -> None:
        self._ends: dict[tuple[bytes, int], tuple[int, int]] = {}

    def note(self, topic_id: bytes, partition: int, *, epoch: int | None, end_offset: int) -> None:
        """A partition reached `end_offset` in `epoch`; what is older than what is known changes nothing.

        Without an epoch it counts for the one that is known.
        """
        key = (topic_id, partition)
        known = self._ends.get(key)
        if epoch is None:
            epoch = 0 if known is None else known[0]
        told = (epoch, end_offset)
        if known is None or told > known:
            self._ends[key] = told
            if known is None and len(self._ends) > PARTITIONS_MAX:
                del self._ends[next(iter(self._ends))]

    def newest(self, topic_id: bytes, partition: int) -> int:
        """Return how far a partition is known to reach; 0 for nothing."""
        return self._ends.get((topic_id, partition), (0, 0))[1]

    def known(self, topic_id: bytes, partition: int, *, epoch: int) -> int:
        """Return the end that who answers in `epoch` ought to know of; 0 for nothing."""
        known_epoch, end_offset = self._ends.get((topic_id, partition), (0, 0))
        return end_offset if epoch <= known_epoch else 0
