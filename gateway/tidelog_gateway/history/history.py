"""Metrics of the last hour in memory: of each topic, and of this gateway.

A sample has the sums of every topic at one time. Rates are differences between samples; if the two are not comparable
(the topic was recreated, or a partition was opened in between), the rate is unknown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.model import TopicFigures

POINTS: Final = 360
"""Number of samples: one hour at the default of `ui_interval_s`, 10 s."""
TOPICS_MAX: Final = 5_000
"""Maximum number of topics with samples, 9 KB each; if there are more topics, the first ones by name are kept."""
RATE_MS: Final = 30_000
"""Period over which a topic's rate is computed, if there are samples of that age."""

_UNKNOWN: Final = -1


class GatewayCounters(NamedTuple):
    """Counters of this gateway since its start, at one time.

    Attributes:
        requests: HTTP requests answered.
        published: records acknowledged.
        delivered: records sent to readers.
        publishes_below: upper bound of the duration in seconds -> number of HTTP publishes that took at most that long,
            by ascending bounds; `inf` counts all.
    """

    requests: float = 0
    published: float = 0
    delivered: float = 0
    publishes_below: Mapping[float, float] = {}


class Rate(NamedTuple):
    """Rates of growth of a topic between two samples.

    Attributes:
        records_per_s: records that were appended.
        bytes_per_s: growth of one copy; below zero where retention or compaction removed more than was appended.
    """

    records_per_s: float
    bytes_per_s: float


@dataclass(slots=True)
class _Topic:
    """Ring buffers of one topic, with one slot for each sample."""

    topic_id: bytes
    ends: array[int]
    sizes: array[int]
    idle: array[int]

    @classmethod
    def empty(cls, topic_id: bytes) -> _Topic:
        unknown = [_UNKNOWN] * POINTS
        return cls(topic_id, array("q", unknown), array("q", unknown), array("q", unknown))

    def put(self, place: int, figures: TopicFigures) -> None:
        self.ends[place] = figures.end_offsets
        self.sizes[place] = figures.size_bytes
        self.idle[place] = figures.idle

    def rate(self, before: int, after: int, seconds: float) -> Rate | None:
        known = self.ends[before] >= 0 and self.idle[before] == self.idle[after] and seconds > 0
        if not known or self.ends[after] < self.ends[before]:
            return None
        records = (self.ends[after] - self.ends[before]) / seconds
        return Rate(records, (self.sizes[after] - self.sizes[before]) / seconds)


class History:
    """Samples of the last hour."""

    def __init__(self) -> None:
        self._times_ms: list[int] = []
        """Times of all samples, ascending."""
        self._sample_count = 0
        self._rate_from = 0
        """Index of the sample that the newest one is compared with for a rate."""
        self._topics: dict[str, _Topic] = {}
        self._gateway: list[GatewayCounters] = []
        self._totals: list[tuple[float | None, int]] = []
        """Records per second and size of all topics, for each sample."""
        self.newest: Mapping[str, TopicFigures] = {}
        """Figures of the newest sample by topic name."""

    @property
    def times_ms(self) -> list[int]:
        """Times of the samples, in ms since 1970, ascending."""
        return self._times_ms

    def add(self, at_ms: int, topics: Mapping[str, TopicFigures], gateway: GatewayCounters) -> None:
        """Add a sample taken at `at_ms`.

        If the clock was set back, so that `at_ms` is not after the newest sample, all earlier samples are discarded.
        """
        if self._times_ms and at_ms <= self._times_ms[-1]:
            self._times_ms, self._topics, self._gateway, self._totals, self._sample_count = [], {}, [], [], 0
        place = self._sample_count % POINTS
        self._sample_count += 1
        self._times_ms = [*self._times_ms[-POINTS + 1 :], at_ms]
        self._gateway = [*self._gateway[-POINTS + 1 :], gateway]
        self._rate_from = self._first_of_rate()
        kept = sorted(topics)[:TOPICS_MAX]
        for name in self._topics.keys() - set(kept):
            del self._topics[name]
        for name in kept:
            samples = self._topics.get(name)
            if samples is None or samples.topic_id != topics[name].topic_id:
                samples = self._topics[name] = _Topic.empty(topics[name].topic_id)
            samples.put(place, topics[name])
        self.newest = topics
        self._totals = [*self._totals[-POINTS + 1 :], self._total()]

    def rate(self, topic: str) -> Rate | None:
        """Return the current growth of a topic; None while it is unknown."""
        samples = self._topics.get(topic)
        count = len(self._times_ms)
        if samples is None or count < 2:
            return None
        seconds = (self._times_ms[-1] - self._times_ms[self._rate_from]) / 1000
        return samples.rate(self._place(self._rate_from), self._place(count - 1), seconds)

    def topic_points(self, topic: str) -> tuple[list[Rate | None], list[int | None]]:
        """Return for each sample the rate since the sample before and the size; None for unknown values."""
        samples = self._topics.get(topic)
        count = len(self._times_ms)
        if samples is None:
            return [None] * count, [None] * count
        sizes = [samples.sizes[self._place(index)] for index in range(count)]
        rates = [self._step(samples, index) for index in range(count)]
        return rates, [None if size == _UNKNOWN else size for size in sizes]

    def total_points(self) -> tuple[list[float | None], list[int]]:
        """Return for each sample the records per second since the sample before, and the size, of all topics.

        A topic with an unknown rate is left out of the rate, but not of the size.
        """
        return [rate for rate, _ in self._totals], [size for _, size in self._totals]

    def gateway_points(self) -> list[GatewayPoint | None]:
        """Return for each sample the activity of this gateway since the sample before; None for the first sample."""
        steps = zip(self._gateway, self._gateway[1:], self._times_ms, self._times_ms[1:], strict=False)
        points: list[GatewayPoint | None] = [None] * min(1, len(self._gateway))
        points += [_point(before, after, (end - begin) / 1000) for before, after, begin, end in steps]
        return points

    def _total(self) -> tuple[float | None, int]:
        """Return the records per second up to the newest sample (None for the first one), and the size at it."""
        newest = len(self._times_ms) - 1
        size = sum(figures.size_bytes for figures in self.newest.values())
        if newest == 0:
            return None, size
        steps = (self._step(samples, newest) for samples in self._topics.values())
        return sum(step.records_per_s for step in steps if step is not None), size

    def _first_of_rate(self) -> int:
        """Return the index of the oldest sample of the last `RATE_MS`, or, if that is the newest, of the one before."""
        newest = len(self._times_ms) - 1
        first = bisect_left(self._times_ms, self._times_ms[-1] - RATE_MS)
        return max(0, min(first, newest - 1))

    def _place(self, index: int) -> int:
        return (self._sample_count - len(self._times_ms) + index) % POINTS

    def _step(self, samples: _Topic, index: int) -> Rate | None:
        if index == 0:
            return None
        seconds = (self._times_ms[index] - self._times_ms[index - 1]) / 1000
        return samples.rate(self._place(index - 1), self._place(index), seconds)


class GatewayPoint(NamedTuple):
    """Activity of a gateway between two samples.

    Attributes:
        requests_per_s: HTTP requests answered.
        published_per_s: records acknowledged.
        delivered_per_s: records handed to readers.
        publish_p50_ms: the lowest finite histogram bound that covers 50 % of the HTTP publishes, or else the highest
            one; None without publishes.
        publish_p99_ms: the same for 99 %.
    """

    requests_per_s: float
    published_per_s: float
    delivered_per_s: float
    publish_p50_ms: float | None
    publish_p99_ms: float | None


def _point(before: GatewayCounters, after: GatewayCounters, seconds: float) -> GatewayPoint:
    counts = {bound: n - before.publishes_below.get(bound, 0) for bound, n in after.publishes_below.items()}
    return GatewayPoint(
        (after.requests - before.requests) / seconds,
        (after.published - before.published) / seconds,
        (after.delivered - before.delivered) / seconds,
        _quantile_ms(counts, 0.5),
        _quantile_ms(counts, 0.99),
    )


def _quantile_ms(below: Mapping[float, float], share: float) -> float | None:
    """Return the lowest finite bound in ms that covers a share of the observations, or else the highest finite bound.

    None without observations.
    """
    total = max(below.values(), default=0)
    if total <= 0:
        return None
    finite = [bound for bound in below if bound != float("inf")]
    reached = [bound for bound in finite if below[bound] >= share * total]
    return 1000 * min(reached, default=max(finite, default=0))
