"""The metrics of requests are exposed as those of prometheus_client's own counter and histogram."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from tidelog_gateway.metrics.request_metrics import RequestMetrics

DURATIONS_S = (0.0, 0.001, 0.0011, 0.0025, 0.7, 30.0, 31.0)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_they_equal_those_of_the_library() -> None:
    ours, library = CollectorRegistry(), CollectorRegistry()
    metrics = RequestMetrics(ours)
    requests = Counter(
        "tidelog_gateway_requests", "HTTP requests answered.", ("method", "route", "status"), registry=library
    )
    durations = Histogram(
        "tidelog_gateway_request_seconds",
        "Time from a request's head to the end of its answer.",
        ("method", "route"),
        buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
        registry=library,
    )
    for method, shown in (("GET", "GET"), ("BREW", "other"), ("STEEP", "other")):
        for status, seconds in enumerate(DURATIONS_S, 200):
            metrics.answered(method, "/v1/topics", status, seconds)
            requests.labels(shown, "/v1/topics", str(status)).inc()
            durations.labels(shown, "/v1/topics").observe(seconds)
    assert lines(ours) == lines(library)
