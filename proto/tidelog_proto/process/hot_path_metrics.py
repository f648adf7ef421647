"""Prometheus metrics for hot paths: plain numbers that a scrape reads; for nodes and gateways.

prometheus_client's own metrics take a lock and validate at every step, which would be a tenth of the cost of a small
publish. Only the event loop's thread writes these numbers, and a scrape may run on another thread: it may see one of
them a publish ahead of another, but never a torn value. This module needs the package prometheus-client.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

LABEL_VALUES_MAX: Final = 1000
"""Maximum number of values of a label that clients choose, such as callers; further values share `OTHER`."""
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
    """Tallies under one metric name: one for each value of a label, or a single one without a label.

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
    """A histogram of seconds.

    Hot paths may inline `observe`: `counts[bisect_left(bounds_s, seconds)] += 1` and `sum_s += seconds`.
    """

    def __init__(self, name: str, text: str, registry: CollectorRegistry, *, bounds_s: Sequence[float]) -> None:
        self._name, self._text = name, text
        self.bounds_s = list(bounds_s)
        self.counts = [0] * (len(self.bounds_s) + 1)
        self.sum_s = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Record a duration."""
        self.counts[bisect_left(self.bounds_s, seconds)] += 1
        self.sum_s += seconds

    def collect(self) -> Iterator[Metric]:
        """Yield the metric for a scrape, with cumulative buckets."""
        buckets: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip([*map(str, self.bounds_s), "+Inf"], self.counts, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self.sum_s)
