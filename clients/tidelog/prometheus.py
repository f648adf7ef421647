"""Client metrics for Prometheus: `Client(..., metrics=PrometheusMetrics())`.

`PrometheusMetrics` counts into a registry of the package `prometheus-client`; the application exposes it, for example
with `prometheus_client.start_http_server`. Names and labels are in docs/metrics.md.

The series of a topic are cached, because a lookup by labels takes longer than an increment.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        "tidelog.prometheus needs the package prometheus-client; run: pip install 'tidelog[prometheus]'"
    ) from error

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class _Published(NamedTuple):
    """The metrics of publishing: the metric families with all topics, or the series of one topic."""

    sent_records: Counter
    sent_bytes: Counter
    retried_records: Counter
    retried_bytes: Counter
    acknowledged_records: Counter
    acknowledged_bytes: Counter
    publish_seconds: Histogram
    buffered_bytes: Gauge


class _Consumed(NamedTuple):
    """The metrics of consuming: the metric families with all topics, or the series of one topic."""

    records: Counter
    size_bytes: Counter


class PrometheusMetrics:
    """Client metrics as Prometheus series; one object serves all clients of a process.

    Args:
        registry: None for the default, `prometheus_client.REGISTRY`.

    Raises:
        ValueError: the registry already has these metrics.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        try:
            self._published = _Published(
                sent_records=_counter(registry, "records_sent", "Records sent, each once"),
                sent_bytes=_counter(registry, "bytes_sent", "Bytes of batches sent, each once"),
                retried_records=_counter(registry, "records_retried", "Records sent again"),
                retried_bytes=_counter(registry, "bytes_retried", "Bytes of batches sent again"),
                acknowledged_records=_counter(registry, "records_acknowledged", "Records acknowledged"),
                acknowledged_bytes=_counter(registry, "bytes_acknowledged", "Bytes of batches acknowledged"),
                publish_seconds=Histogram(
                    "tidelog_client_publish_seconds",
                    "Time from the acceptance of a batch's oldest record to its acknowledgement",
                    ["topic"],
                    registry=registry,
                    buckets=_SECONDS,
                ),
                buffered_bytes=_gauge(
                    registry, "buffered_bytes", "Bytes that producers accepted and have not delivered"
                ),
            )
            self._consumed = _Consumed(
                records=_counter(registry, "records_consumed", "Records that consumers took"),
                size_bytes=_counter(registry, "bytes_consumed", "Bytes of batches that consumers took"),
            )
            self._failed_records = _counter(
                registry, "records_failed", "Records that were not delivered, by error code", "code"
            )
            self._lag_records = _gauge(
                registry,
                "lag_records",
                "Offsets between a consumer's position and the last known end of the log",
                "partition",
            )
            self._reconnects = Counter(
                "tidelog_client_reconnects",
                "Connections that were opened again after a loss",
                ["node"],
                registry=registry,
            )
            self._throttled = Counter(
                "tidelog_client_throttled_seconds",
                "Seconds by which a node's quota delayed publishing, consuming or other requests",
                ["node"],
                registry=registry,
            )
        except ValueError as error:
            raise ValueError(
                "the registry already has Tidelog's client metrics: create one PrometheusMetrics and pass it to all "
                f"clients ({error})"
            ) from error
        self._published_to: dict[str, _Published] = {}
        self._consumed_from: dict[str, _Consumed] = {}

    def sent(self, topic: str, records: int, size_bytes: int) -> None:
        """See `ClientMetrics`."""
        series = self._published_to.get(topic) or self._publishing(topic)
        series.sent_records.inc(records)
        series.sent_bytes.inc(size_bytes)

    def retried(self, topic: str, records: int, size_bytes: int) -> None:
        """See `ClientMetrics`."""
        series = self._published_to.get(topic) or self._publishing(topic)
        series.retried_records.inc(records)
        series.retried_bytes.inc(size_bytes)

    def acknowledged(self, topic: str, records: int, size_bytes: int, latency_s: float) -> None:
        """See `ClientMetrics`."""
        series = self._published_to.get(topic) or self._publishing(topic)
        series.acknowledged_records.inc(records)
        series.acknowledged_bytes.inc(size_bytes)
        series.publish_seconds.observe(latency_s)

    def failed(self, topic: str, records: int, code: str) -> None:
        """See `ClientMetrics`."""
        self._failed_records.labels(topic, code).inc(records)

    def buffered(self, topic: str, change_bytes: int) -> None:
        """See `ClientMetrics`."""
        series = self._published_to.get(topic) or self._publishing(topic)
        series.buffered_bytes.inc(change_bytes)

    def consumed(self, topic: str, partition: int, records: int, size_bytes: int) -> None:  # noqa: ARG002 - fewer series
        """See `ClientMetrics`. Partitions are summed."""
        series = self._consumed_from.get(topic) or self._consuming(topic)
        series.records.inc(records)
        series.size_bytes.inc(size_bytes)

    def lag(self, topic: str, partition: int, records: int | None) -> None:
        """See `ClientMetrics`. With several consumers of a partition, the last report counts."""
        if records is not None:
            self._lag_records.labels(topic, partition).set(records)
        else:
            self._lag_records.remove(topic, partition)

    def reconnected(self, node: str) -> None:
        """See `ClientMetrics`."""
        self._reconnects.labels(node).inc()

    def throttled(self, node: str, delay_s: float) -> None:
        """See `ClientMetrics`."""
        self._throttled.labels(node).inc(delay_s)

    def _publishing(self, topic: str) -> _Published:
        series: list[Any] = [family.labels(topic) for family in self._published]
        return self._published_to.setdefault(topic, _Published(*series))

    def _consuming(self, topic: str) -> _Consumed:
        series = [family.labels(topic) for family in self._consumed]
        return self._consumed_from.setdefault(topic, _Consumed(*series))


def _counter(registry: CollectorRegistry, name: str, meaning: str, *labels: str) -> Counter:
    return Counter(f"tidelog_client_{name}", meaning, ["topic", *labels], registry=registry)


def _gauge(registry: CollectorRegistry, name: str, meaning: str, *labels: str) -> Gauge:
    return Gauge(f"tidelog_client_{name}", meaning, ["topic", *labels], registry=registry)
