"""The gateway's Prometheus metrics.

Each application has its own registry, so that several in one process (in tests) do not share counters. Routes are
labelled by their template, never by the path, which clients choose.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.metrics.integer_counter import IntegerCounter
from tidelog_proto.process.standard_streams import dropped_writes
from tidelog_proto.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """The counters of one application.

    Args:
        budget: the request budget.
        outgoing: the response budget.
        has_parent: whether this is one of several workers, which the parent process counts.
    """

    def __init__(self, budget: RequestBudget, outgoing: ResponseBudget, *, has_parent: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tidelog_gateway_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.request_s = Histogram(
            "tidelog_gateway_request_seconds",
            "Time from a request's head to the end of its answer.",
            ("method", "route"),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.records_in = Counter(
            "tidelog_gateway_records_published",
            "Records acknowledged by the log.",
            ("surface",),
            registry=self.registry,
        )
        self.records_out = IntegerCounter(
            "tidelog_gateway_records_delivered", "Records handed to readers.", "surface", registry=self.registry
        )
        # Cached, because finding a counter by its labels takes longer than counting.
        self.http_records_in = self.records_in.labels("http")
        self.http_records_out = self.records_out.labels("http")
        self.websockets = Gauge("tidelog_gateway_websockets", "Open WebSockets.", registry=self.registry)
        self.subscriptions = Gauge(
            "tidelog_gateway_subscriptions",
            "Subscriptions of open WebSockets, and open streams.",
            registry=self.registry,
        )
        self.streams = Gauge("tidelog_gateway_streams", "Open streams of events over HTTP.", registry=self.registry)
        self.feeds = Gauge(
            "tidelog_gateway_feeds",
            "Feeds: each reads and encodes a topic once for all subscriptions of a caller that follow it.",
            registry=self.registry,
        )
        self.websocket_closes = Counter(
            "tidelog_gateway_websocket_closes", "WebSockets closed by the gateway.", ("code",), registry=self.registry
        )
        self.identified = Counter(
            "tidelog_gateway_identified",
            "Authentications of new credentials: known, refused, or limited (the address has failed too often).",
            ("outcome",),
            registry=self.registry,
        )
        in_flight = Gauge(
            "tidelog_gateway_in_flight_bytes",
            "Bytes of request bodies and WebSocket messages in memory.",
            registry=self.registry,
        )
        in_flight.set_function(lambda: float(budget.used_bytes))
        out = Gauge(
            "tidelog_gateway_out_bytes",
            "Bytes of the response budget in use: answers, WebSocket messages, and records read ahead for them.",
            registry=self.registry,
        )
        out.set_function(lambda: float(outgoing.used_bytes))
        self.cut_connections = Counter(
            "tidelog_gateway_cut_connections",
            "Connections closed because their clients did not read.",
            registry=self.registry,
        )
        self.tls_ends = Gauge(
            "tidelog_gateway_tls_ends_timestamp_seconds",
            "Expiry of the gateway's certificate, in seconds since 1970.",
            ("what",),
            registry=self.registry,
        )
        self._tell_processes(0 if has_parent else 1)
        self.registry.register(_DroppedWrites())
        ProcessCollector(registry=self.registry)
        self._of_requests: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """The counters by method, route and status, because finding them by their labels takes longer than counting."""
        outgoing.on_cut = self.cut_connections.inc

    def _tell_processes(self, workers: int) -> None:
        Gauge("tidelog_gateway_workers", "Worker processes that serve now.", registry=self.registry).set(workers)
        what = "Worker processes that ended unexpectedly and were replaced."
        Counter("tidelog_gateway_worker_restarts", what, registry=self.registry)
        build = Gauge(
            "tidelog_gateway_build_info",
            "Always 1; the labels are the versions in use.",
            ("version", "python"),
            registry=self.registry,
        )
        build.labels(VERSION, platform.python_version()).set(1)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count and time a request; `route` is the template of its path, or `none`."""
        found = self._of_requests.get((method, route, status))
        if found is None:
            shown = method if method in _METHODS else "other"
            found = self.requests.labels(shown, route, str(status)), self.request_s.labels(shown, route)
            if shown == method:
                self._of_requests[method, route, status] = found
        found[0].inc()
        found[1].observe(seconds)

    def tls_ends_at(self, what: str, ends_s: float) -> None:
        """Set the expiry of a certificate file."""
        self.tls_ends.labels(what).set(ends_s)

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _DroppedWrites(Collector):
    """Counts dropped writes of the process's standard streams."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the current count."""
        what = "Writes to the log that were dropped because nothing read standard error or output."
        yield CounterMetricFamily("tidelog_gateway_log_dropped", what, value=dropped_writes())
