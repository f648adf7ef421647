"""Metrics of answered requests that are plain numbers between scrapes.

The counter and the histogram of `prometheus_client` make fourteen calls and take three locks for each request. Here
only the event loop's thread counts, and `collect` reads the numbers.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_BOUNDS: Final = (*map(str, _BUCKETS_S), "+Inf")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class _Times:
    """The durations of the requests of one method and route.

    Attributes:
        counts: requests by bucket, not cumulative.
        sum_s: sum of the durations.
    """

    __slots__ = ("counts", "created_s", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum_s = 0.0
        self.created_s = time.time()


class _Series:
    """The requests of one method, route and status.

    Attributes:
        times: durations of the requests of its method and route, with any status.
    """

    __slots__ = ("count", "created_s", "times")

    def __init__(self, times: _Times) -> None:
        self.count = 0
        self.times = times
        self.created_s = time.time()


class RequestMetrics(Collector):
    """Counts and times answered requests."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._series: dict[tuple[str, str, int], _Series] = {}
        self._times: dict[tuple[str, str], _Times] = {}
        registry.register(self)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count and time a request; `route` is the template of its path, or `none`."""
        series = self._series.get((method, route, status))
        if series is None:
            series = self._series_of(method if method in _METHODS else "other", route, status)
        series.count += 1
        times = series.times
        times.counts[bisect_left(_BUCKETS_S, seconds)] += 1
        times.sum_s += seconds

    def collect(self) -> Iterator[CounterMetricFamily | HistogramMetricFamily]:
        """Yield the metric families for request counts and durations (Prometheus collector)."""
        requests = CounterMetricFamily(
            "tidelog_gateway_requests", "HTTP requests answered.", labels=("method", "route", "status")
        )
        for (method, route, status), series in list(self._series.items()):
            requests.add_metric((method, route, str(status)), series.count, created=series.created_s)
        yield requests
        durations = HistogramMetricFamily(
            "tidelog_gateway_request_seconds",
            "Time from a request's head to the end of its answer.",
            labels=("method", "route"),
        )
        for key, times in list(self._times.items()):
            buckets = list(zip(_BOUNDS, accumulate(times.counts), strict=True))
            durations.add_metric(key, buckets, times.sum_s)
        yield durations

    def _series_of(self, method: str, route: str, status: int) -> _Series:
        times = self._times.setdefault((method, route), _Times())
        return self._series.setdefault((method, route, status), _Series(times))
