"""The log ends that a client knows, from acknowledgements, owners and received records.

A lagging node answers a read as if the log ended earlier; the client compares the answer with the end it knows. The
comparison holds within an epoch only, because a new epoch may begin without records of the previous epoch
that were lost with its replicas.
"""

from __future__ import annotations

from typing import Final

PARTITIONS_MAX: Final = 65_536
"""Maximum number of partitions that are remembered; those noted first are evicted first."""


class KnownEnds:
    """Remembers the highest log end that one client knows of each partition, and the epoch of that end."""

    def __init__(self) -> None:
        self._ends: dict[tuple[bytes, int], tuple[int, int]] = {}

    def note(self, topic_id: bytes, partition: int, *, epoch: int | None, end_offset: int) -> None:
        """Note that a partition reached `end_offset` in `epoch`; older values change nothing.

        Without an epoch, the value belongs to the known epoch.
        """
        key = (topic_id, partition)
        known = self._ends.get(key)
        if epoch is None:
            epoch = 0 if known is None else known[0]
        reported = (epoch, end_offset)
        if known is None or reported > known:
            self._ends[key] = reported
            if known is None and len(self._ends) > PARTITIONS_MAX:
                del self._ends[next(iter(self._ends))]

    def newest(self, topic_id: bytes, partition: int) -> int:
        """Return the known log end of a partition; 0 if unknown."""
        return self._ends.get((topic_id, partition), (0, 0))[1]

    def known(self, topic_id: bytes, partition: int, *, epoch: int) -> int:
        """Return the log end that a node answering in `epoch` must know; 0 if this client knows none of that epoch."""
        known_epoch, end_offset = self._ends.get((topic_id, partition), (0, 0))
        return end_offset if epoch <= known_epoch else 0
