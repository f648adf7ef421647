"""The gateway's Prometheus metrics.

Each application has its own registry, so that several in one process (in tests) do not share counters. Routes are
labelled by their template, never by the path, which clients choose.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.metrics.request_metrics import RequestMetrics
from tidelog_proto.process.hot_path_metrics import TallyCounter
from tidelog_proto.process.standard_streams import dropped_writes
from tidelog_proto.version import VERSION

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The Prometheus metrics of one application, in a registry of their own.

    Args:
        has_parent: whether this is one of several workers, which the parent process counts.
    """

    def __init__(self, budget: RequestBudget, outgoing: ResponseBudget, *, has_parent: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.answered = RequestMetrics(self.registry).answered
        self.records_in = TallyCounter(
            "tidelog_gateway_records_published", "Records acknowledged by the log.", self.registry, label="surface"
        )
        self.records_out = TallyCounter(
            "tidelog_gateway_records_delivered", "Records sent to readers.", self.registry, label="surface"
        )
        # Cached, because finding a counter by its labels takes longer than counting.
        self.http_records_in = self.records_in.tally("http")
        self.http_records_out = self.records_out.tally("http")
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
            "Authentications of new credentials by outcome: known, refused, or limited (too many failures of the "
            "address).",
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
        outgoing.on_cut = self.cut_connections.inc

    def _tell_processes(self, workers: int) -> None:
        Gauge("tidelog_gateway_workers", "Worker processes that serve now.", registry=self.registry).set(workers)
        what = "Worker processes that ended unexpectedly and were replaced."
        Counter("tidelog_gateway_worker_restarts", what, registry=self.registry)
        build = Gauge(
            "tidelog_gateway_build_info",
            "Always 1; the labels have the versions of Tidelog and Python.",
            ("version", "python"),
            registry=self.registry,
        )
        build.labels(VERSION, platform.python_version()).set(1)

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
