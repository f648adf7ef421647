"""How much a member of a group reads of each of its partitions: measured a batch at a time, told a part at a time.

A rate is an average of bytes per second that forgets: what was read `MEMORY_S` ago counts for a third of what is read
now. Of each partition that takes three numbers, however much is read. No I/O and no clock.
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
"""What was read so long ago counts for 1/e."""
AGE_MIN_S: Final = 5.0
"""A partition that has been read for less is not told of: it may be catching up, and its last reader's rate stands."""
REPORT_INTERVAL_S: Final = 5.0
"""A member tells its rates so often at most, whatever its session."""
REPORTED_MAX: Final = 1_000
"""Partitions that are told of at a time, about 35 kB; who reads more tells of them in turn."""


@dataclass(slots=True)
class _PartitionLoad:
    since: float
    at: float
    read_bytes: float = 0.0
    """By `at`, the older the less of it."""
    end_offset: int = 0
    """Of what was counted: what is put back by a pause, and taken again, counts once."""


class LoadMeter:
    """See the module.

    Args:
        now: seconds of a clock that does not go back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._loads: dict[TopicPartition, _PartitionLoad] = {}
        self._report_at = 0.0
        self._reported = 0

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Measure partitions from now on."""
        now = self._now()
        for where in partitions:
            self._loads[where] = _PartitionLoad(now, now)

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions."""
        for where in partitions:
            self._loads.pop(where, None)

    def seek(self, where: TopicPartition) -> None:
        """Reading goes on elsewhere: what was read before counts again when it is read again."""
        if (load := self._loads.get(where)) is not None:
            load.end_offset = 0

    def taken(self, where: TopicPartition, end_offset: int, size_bytes: int) -> None:
        """A batch was taken to be handed out.

        Args:
            where: the partition.
            end_offset: behind its last record.
            size_bytes: as it came, compressed if it is.
        """
        load = self._loads.get(where)
        if load is None or end_offset <= load.end_offset:
            return
        now = self._now()
        load.read_bytes = load.read_bytes * exp((load.at - now) / MEMORY_S) + size_bytes
        load.at, load.end_offset = now, end_offset

    def rates(self) -> dict[TopicPartition, float]:
        """Return bytes per second of each partition that has been read for long enough to tell."""
        return self._rates(self._loads)

    def due(self) -> dict[TopicPartition, float]:
        """Return what is to be told now, as `rates`, of `REPORTED_MAX` partitions at most; nothing if it is too early."""
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
                # What a steady rate would have come to by this age, so that a young partition's is right, too.
                seconds = MEMORY_S * (1 - exp(-age_s / MEMORY_S))
                rates[where] = min(left_bytes / seconds, LOAD_BYTES_S_MAX)
        return rates
