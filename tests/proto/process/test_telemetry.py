"""OTLP export: spans with parents and links, and the metrics of a registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from tests.otlp_receiver import Received, receiving

from tidelog_proto.process.settings import SettingsError
from tidelog_proto.process.telemetry import Telemetry, traceparent_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXTS = [f"00-{TRACE}-{number:016x}-01" for number in range(1, 60)]


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Received]:
    with receiving() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.endpoint)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        yield received


def test_a_span_has_the_first_context_as_parent_and_the_others_as_links(received: Received) -> None:
    telemetry = Telemetry("service", instance="one", collect=list)
    span = telemetry.begin("publish", kind=trace.SpanKind.SERVER, contexts=[*CONTEXTS[:3], "no context"])
    assert traceparent_of(span).startswith(f"00-{TRACE}-")
    span.end()
    many = telemetry.begin("publish", kind=trace.SpanKind.SERVER, contexts=CONTEXTS)
    many.end()
    alone = telemetry.begin("fetch", kind=trace.SpanKind.SERVER, contexts=["no context"])
    alone.end()
    telemetry.close()
    telemetry.close()
    first, second, third = [sent for service, sent in received.spans if service == "service"]
    assert first.kind == Span.SPAN_KIND_SERVER
    assert first.parent_span_id.hex() == f"{1:016x}"
    assert [link.span_id.hex() for link in first.links] == [f"{2:016x}", f"{3:016x}"]
    assert len(second.links) == 31, "contexts of one request are bounded"
    assert not third.parent_span_id


def test_a_span_that_is_not_recorded_has_no_context_to_carry(
    received: Received, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    telemetry = Telemetry("service", instance="one", collect=list)
    assert traceparent_of(telemetry.begin("publish", kind=trace.SpanKind.SERVER)) == ""
    telemetry.close()
    assert received.spans == []


def test_metrics_are_those_of_the_registry_under_their_names(received: Received) -> None:
    registry = CollectorRegistry()
    Counter("asked", "Requests.", ("kind",), registry=registry).labels("fetch").inc(3)
    Gauge("open", "Connections.", registry=registry).set(2.5)
    seconds = Histogram("took_seconds", "Time.", buckets=(0.1, 1.0), registry=registry)
    for value in (0.05, 0.5, 0.6, 5.0):
        seconds.observe(value)
    telemetry = Telemetry("service", instance="one", collect=registry.collect)
    received.wait(lambda: ("service", "took_seconds") in received.metrics)
    telemetry.close()
    asked = received.metrics["service", "asked_total"]
    (point,) = asked.sum.data_points
    assert (point.as_double, asked.sum.is_monotonic, point.attributes[0].value.string_value) == (3.0, True, "fetch")
    assert received.metrics["service", "open"].gauge.data_points[0].as_double == 2.5
    (took,) = received.metrics["service", "took_seconds"].histogram.data_points
    assert (list(took.explicit_bounds), list(took.bucket_counts), took.count) == ([0.1, 1.0], [1, 2, 1], 4)
    assert took.sum == pytest.approx(6.15)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_METRICS_EXPORTER", "prometheus"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
    ],
)
def test_unsupported_variables_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=name):
        Telemetry("service", instance="one", collect=list)


def test_nothing_is_sent_where_the_sdk_is_disabled(received: Received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    telemetry = Telemetry("service", instance="one", collect=list)
    telemetry.begin("publish", kind=trace.SpanKind.SERVER).end()
    telemetry.close()
    assert (received.spans, received.metrics) == ([], {})
