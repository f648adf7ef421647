"""The load of each partition that a group member reads, measured per batch and reported in portions.

A rate is an exponentially decaying average of bytes per second: bytes read `MEMORY_S` ago count for 1/e. No I/O;
callers pass the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import cycle, islice
from math import exp
from typing import Final

from tidelog.model import TopicPartition
from tidelog_proto.limits import LOAD_BYTES_S_MAX

MEMORY_S: Final = 30.0
"""Time constant of the decay."""
AGE_MIN_S: Final = 5.0
"""A partition is reported after it was read for this time: before that it may be catching up, and the rate of the
previous member is more accurate."""
REPORT_INTERVAL_S: Final = 5.0
"""Minimum interval between reports, even with a short session timeout."""
REPORTED_MAX: Final = 1_000
"""Maximum number of partitions per report, about 35 kB; members with more partitions report them in turn."""


@dataclass(slots=True)
class _PartitionLoad:
    since: float
    at: float
    read_bytes: float = 0.0
    """Decayed sum of bytes at the time `at`."""
    end_offset: int = 0
    """End offset of the counted batches, so that a batch that a pause put back is counted once."""


class LoadMeter:
    """Measures the load of a member's partitions.

    Args:
        now: seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loads: dict[TopicPartition, _PartitionLoad] = {}
        self._report_at = 0.0
        self._reported = 0

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Start measuring partitions."""
        now = self._now()
        for where in partitions:
            self._loads[where] = _PartitionLoad(now, now)

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop measuring partitions."""
        for where in partitions:
            self._loads.pop(where, None)

    def seek(self, where: TopicPartition) -> None:
        """Note a seek: records that are read again count again."""
        if (load := self._loads.get(where)) is not None:
            load.end_offset = 0

    def taken(self, where: TopicPartition, end_offset: int, size_bytes: int) -> None:
        """Count a batch that was taken for delivery.

        Args:
            size_bytes: size of the batch as received, which may be compressed.
        """
        load = self._loads.get(where)
        if load is None or end_offset <= load.end_offset:
            return
        now = self._now()
        load.read_bytes = load.read_bytes * exp((load.at - now) / MEMORY_S) + size_bytes
        load.at, load.end_offset = now, end_offset

    def rates(self) -> dict[TopicPartition, float]:
        """Return bytes per second of each partition that has been read for at least `AGE_MIN_S`."""
        return self._rates(self._loads)

    def due(self) -> dict[TopicPartition, float]:
        """Return the rates to report now, of at most `REPORTED_MAX` partitions; empty if it is too early."""
        now = self._now()
        if now < self._report_at:
            return {}
        self._report_at = now + REPORT_INTERVAL_S
        count = len(self._loads)
        if count <= REPORTED_MAX:
            return self.rates()
        first = self._reported % count
        self._reported = first + REPORTED_MAX
        return self._rates(islice(cycle(self._loads), first, self._reported))

    def _rates(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, float]:
        now = self._now()
        rates: dict[TopicPartition, float] = {}
        for where in partitions:
            load = self._loads[where]
            if (age_s := now - load.since) >= AGE_MIN_S:
                left_bytes = load.read_bytes * exp((load.at - now) / MEMORY_S)
                # Normalize by the weight accumulated at this age, so that young partitions are not underestimated.
                seconds = MEMORY_S * (1 - exp(-age_s / MEMORY_S))
                rates[where] = min(left_bytes / seconds, LOAD_BYTES_S_MAX)
        return rates
