"""Cheap Prometheus metrics for hot paths: plain numbers that a scrape reads.

prometheus_client's own metrics take a lock and validate at every step, which would be a tenth of the cost of a small
publish. These are written only by the event loop's thread and read by the management port's: a scrape may see one of
them a publish ahead of another, but never a torn value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog_broker.base.node_gauges import read_beside_loop
from tidelog_proto.names import INTERNAL_PREFIX

LABEL_VALUES_MAX: Final = 1000
"""Limit of the values of a label that clients choose, such as callers; further values share `OTHER`."""
OTHER: Final = "(other)"


class Tally:
    """A number that only increases."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Add `amount`."""
        self.value += amount


class TallyCounter(Collector):
    """Tallies under one metric name, one per value of a label; without a label, one.

    The number of values is limited, since a long-running process would otherwise export every caller and topic it ever
    had.
    """

    def __init__(self, name: str, text: str, registry: CollectorRegistry, *, label: str | None = None) -> None:
        self._name, self._text, self._label = name, text, label
        self._tallies: dict[str, Tally] = {}
        registry.register(self)

    def tally(self, label_value: str = "") -> Tally:
        """Return the tally of a label value, creating it if necessary; beyond the limit, that of `OTHER`."""
        if label_value not in self._tallies and len(self._tallies) >= LABEL_VALUES_MAX:
            label_value = OTHER
        return self._tallies.setdefault(label_value, Tally())

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for a scrape."""
        family = CounterMetricFamily(self._name, self._text, labels=[self._label] if self._label else None)
        for label_value, tally in list(self._tallies.items()):
            family.add_metric([label_value] if self._label else [], tally.value)
        yield family


class Durations(Collector):
    """A histogram of seconds."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry, *, bounds_s: Sequence[float]) -> None:
        self._name, self._text = name, text
        self._bounds_s = list(bounds_s)
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._sum_s = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Record a duration."""
        self._counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for a scrape, with cumulative buckets."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip([*map(str, self._bounds_s), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum_s)


class PartitionFigures(NamedTuple):
    """The exported figures of one partition."""

    topic: str
    partition: int
    high_watermark: int
    log_start: int
    size_bytes: int
    window_records: int | None = None


class PartitionGauges(Collector):
    """Gauges of open partitions, computed at each scrape.

    Partitions beyond a limit are omitted: internal ones first, then the last by topic and number, so that each scrape
    exports the same ones.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._figures: Callable[[], Iterable[PartitionFigures]] = tuple
        self._partitions_max = 0
        self.omitted = 0
        """Number of partitions omitted from the last scrape."""
        registry.register(self)

    def watch(self, figures: Callable[[], Iterable[PartitionFigures]], partitions_max: int) -> None:
        """Export up to `partitions_max` of these figures from now on; `figures` may be called on any thread."""
        self._figures, self._partitions_max = figures, partitions_max

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a scrape."""
        labels = ["topic", "partition"]
        watermark = GaugeMetricFamily("tidelog_high_watermark_offset", "End of the committed records", labels=labels)
        start = GaugeMetricFamily("tidelog_log_start_offset", "First readable offset", labels=labels)
        size = GaugeMetricFamily("tidelog_partition_bytes", "Bytes of segments", labels=labels)
        window = GaugeMetricFamily(
            "tidelog_deduplication_window_records", "Records in the deduplication window", labels=labels
        )
        figures = sorted(read_beside_loop(self._figures), key=_told_first)
        self.omitted = max(0, len(figures) - self._partitions_max)
        for each in figures[: self._partitions_max]:
            place = [each.topic, str(each.partition)]
            if each.window_records is not None:
                window.add_metric(place, each.window_records)
            watermark.add_metric(place, each.high_watermark)
            start.add_metric(place, each.log_start)
            size.add_metric(place, each.size_bytes)
        yield from (watermark, start, size, window)


def _told_first(figures: PartitionFigures) -> tuple[bool, str, int]:
    return figures.topic.startswith(INTERNAL_PREFIX), figures.topic, figures.partition
