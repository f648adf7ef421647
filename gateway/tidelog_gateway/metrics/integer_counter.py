"""Counter of Prometheus that is a plain integer between scrapes.

`prometheus_client.Counter.inc` makes four more calls and takes a lock, which costs as much as writing a frame to a
socket. Here counting is an addition to `Series.value`, which only the event loop's thread makes; `collect` reads it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Series:
    """The count for one value of the label.

    Attributes:
        value: the count; only grows.
    """

    __slots__ = ("created_s", "value")

    def __init__(self) -> None:
        self.value = 0
        self.created_s = time.time()

    def inc(self, amount: int = 1) -> None:
        """Add to the count."""
        self.value += amount


class IntegerCounter(Collector):
    """A counter with one label.

    Args:
        name: without `_total`.
        documentation: help text of the metric.
        label: name of the label.
        registry: collects the counter.
    """

    def __init__(self, name: str, documentation: str, label: str, *, registry: CollectorRegistry) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._series: dict[str, Series] = {}
        registry.register(self)

    def labels(self, value: str) -> Series:
        """Return the series of a value of the label."""
        return self._series.setdefault(value, Series())

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield the family without counts, so that the registry refuses another metric of its name."""
        yield CounterMetricFamily(self._name, self._documentation, labels=[self._label])

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current counts."""
        family = CounterMetricFamily(self._name, self._documentation, labels=[self._label])
        for value, series in list(self._series.items()):
            family.add_metric([value], series.value, created=series.created_s)
        yield family
