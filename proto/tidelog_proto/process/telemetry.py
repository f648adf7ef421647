"""OpenTelemetry spans and metrics of a node or a gateway, exported over OTLP/HTTP.

The SDK's environment variables (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_METRIC_EXPORT_INTERVAL, …)
configure the target, sampling and interval. A thread exports the metrics of `/metrics` under the same names. The SDK
queues spans and drops them when its queue is full, so an unreachable collector does not slow the process.

Import this module only if the setting `otel` is on: it needs the extra `otel`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from tidelog_proto.limits import TRACE_CONTEXTS_MAX
from tidelog_proto.process.settings import SettingsError
from tidelog_proto.version import VERSION

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise SettingsError(
        f"otel = true needs packages that are missing ({error}); run: pip install 'tidelog[otel]'"
    ) from error

log = logging.getLogger(__name__)

SCOPE: Final = "tidelog"
INTERVAL_S_DEFAULT: Final = 60.0
CLOSE_S: Final = 3.0
"""Maximum time that the end of the process waits for pending exports."""
_PROTOCOL: Final = "http/protobuf"
_PROPAGATOR: Final = TraceContextTextMapPropagator()

Families = Callable[[], Iterable[Any]]
"""Collects the metric families of a Prometheus registry."""


class Telemetry:
    """Exporter of the spans and metrics of one process.

    Args:
        service: the `service.name` of the process, unless OTEL_SERVICE_NAME is set.
        instance: the `service.instance.id` of the process.
        collect: collects the process's metrics; called on the exporting thread.

    Raises:
        SettingsError: an OTEL variable has an unsupported value.
    """

    def __init__(self, service: str, *, instance: str, collect: Families) -> None:
        _check_variables()
        attributes = {"service.instance.id": instance, "service.version": VERSION}
        if not os.environ.get("OTEL_SERVICE_NAME"):
            attributes["service.name"] = service
        self._resource = Resource.create(attributes)
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        if _is_exported("OTEL_TRACES_EXPORTER"):
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(SCOPE, VERSION)
        self._collect = collect
        self._since_ns = time.time_ns()
        self._ended = threading.Event()
        self._metrics: OTLPMetricExporter | None = None
        if _is_exported("OTEL_METRICS_EXPORTER"):
            self._metrics = OTLPMetricExporter()
            threading.Thread(target=self._export_metrics, name="exporting metrics", daemon=True).start()

    def begin(
        self, name: str, *, kind: trace.SpanKind, contexts: Sequence[str] = (), attributes: dict[str, Any] | None = None
    ) -> trace.Span:
        """Start a span.

        Args:
            name: name of the span.
            kind: its OpenTelemetry kind.
            contexts: W3C `traceparent` texts: the first is the parent, up to `TRACE_CONTEXTS_MAX` - 1 others are links.
            attributes: attributes of the span.
        """
        parent, *others = [_context_of(each) for each in contexts[:TRACE_CONTEXTS_MAX]] or [Context()]
        linked = [trace.get_current_span(each).get_span_context() for each in others]
        links = [trace.Link(each) for each in linked if each.is_valid]
        return self._tracer.start_span(name, context=parent, kind=kind, links=links, attributes=attributes)

    def close(self) -> None:
        """Export pending data for up to CLOSE_S. Repeated calls do nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        last = threading.Thread(target=self._close, name="ending telemetry", daemon=True)
        last.start()
        last.join(CLOSE_S)

    def _close(self) -> None:
        self._provider.shutdown()
        self._export_once()

    def _export_metrics(self) -> None:
        while not self._ended.wait(_interval_s()):
            self._export_once()

    def _export_once(self) -> None:
        if self._metrics is None:
            return
        try:
            self._metrics.export(self._data())
        except Exception:  # An exporter's error must not end the thread.
            log.exception(
                "metrics could not be exported to the OpenTelemetry collector; trying again at the next interval"
            )

    def _data(self) -> export.MetricsData:
        now_ns = time.time_ns()
        metrics = [
            metric for family in self._collect() if (metric := _metric_of(family, self._since_ns, now_ns)) is not None
        ]
        scope = export.ScopeMetrics(InstrumentationScope(SCOPE, VERSION), metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])


def traceparent_of(span: trace.Span) -> str:
    """Return the W3C `traceparent` of a span; empty if the span is not sampled."""
    context = span.get_span_context()
    if not context.is_valid or not context.trace_flags.sampled:
        return ""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context_of(traceparent: str) -> Context:
    return _PROPAGATOR.extract({"traceparent": traceparent}, context=Context())


def _check_variables() -> None:
    for signal in ("", "_TRACES", "_METRICS"):
        name = f"OTEL_EXPORTER_OTLP{signal}_PROTOCOL"
        value = os.environ.get(name, _PROTOCOL)
        if value != _PROTOCOL:
            raise SettingsError(
                f"{name} is {value!r}; only {_PROTOCOL} is supported: unset it, or set it to {_PROTOCOL}"
            )
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER"):
        value = os.environ.get(name, "otlp")
        if value not in {"otlp", "none"}:
            raise SettingsError(f"{name} must be otlp or none, got {value!r}")
    _interval_s()


def _is_exported(name: str) -> bool:
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and os.environ.get(name, "otlp") == "otlp"


def _interval_s() -> float:
    name = "OTEL_METRIC_EXPORT_INTERVAL"
    value = os.environ.get(name, "")
    if not value:
        return INTERVAL_S_DEFAULT
    if not value.isdigit() or not int(value):
        raise SettingsError(f"{name} must be a whole number of milliseconds, at least 1, got {value!r}")
    return int(value) / 1000


def _metric_of(family: Any, since_ns: int, now_ns: int) -> export.Metric | None:
    """Convert a Prometheus metric family to an OpenTelemetry metric; None for unsupported types or without samples."""
    cumulative = export.AggregationTemporality.CUMULATIVE
    if family.type == "histogram":
        points = _histogram_points(family.samples, since_ns, now_ns)
        return export.Metric(family.name, family.documentation, "", export.Histogram(points, cumulative))
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    if not samples or family.type not in {"counter", "gauge", "unknown", "info"}:
        return None
    numbers = [
        export.NumberDataPoint(
            attributes=sample.labels, start_time_unix_nano=since_ns, time_unix_nano=now_ns, value=sample.value
        )
        for sample in samples
    ]
    data: export.Sum | export.Gauge = export.Gauge(numbers)
    if family.type == "counter":
        data = export.Sum(numbers, cumulative, is_monotonic=True)
    return export.Metric(samples[0].name, family.documentation, "", data)


def _histogram_points(samples: Iterable[Any], since_ns: int, now_ns: int) -> list[export.HistogramDataPoint]:
    series: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for sample in samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        of_series = series.setdefault(labels, {"buckets": []})
        if sample.name.endswith("_bucket"):
            of_series["buckets"].append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith(("_sum", "_count")):
            of_series[sample.name.rpartition("_")[2]] = sample.value
    points: list[export.HistogramDataPoint] = []
    for labels, cells in series.items():
        buckets = sorted(cells["buckets"])
        counts = [count for _, count in buckets]
        points.append(
            export.HistogramDataPoint(
                attributes=dict(labels),
                start_time_unix_nano=since_ns,
                time_unix_nano=now_ns,
                count=int(cells.get("count", 0)),
                sum=cells.get("sum", 0.0),
                bucket_counts=[*counts[:1], *(later - earlier for earlier, later in pairwise(counts))],
                explicit_bounds=[bound for bound, _ in buckets if bound != float("inf")],
                min=0.0,
                max=0.0,
            )
        )
    return points
