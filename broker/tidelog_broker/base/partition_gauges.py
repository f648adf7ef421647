"""Gauges of the open partitions of a node, computed at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog_broker.base.node_gauges import read_with_retries
from tidelog_proto.names import INTERNAL_PREFIX


class PartitionFigures(NamedTuple):
    """The exported figures of one partition.

    Attributes:
        window_records: number of records in the deduplication window; None without such a window.
    """

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
        figures = sorted(read_with_retries(self._figures), key=_export_order)
        self.omitted = max(0, len(figures) - self._partitions_max)
        for each in figures[: self._partitions_max]:
            place = [each.topic, str(each.partition)]
            if each.window_records is not None:
                window.add_metric(place, each.window_records)
            watermark.add_metric(place, each.high_watermark)
            start.add_metric(place, each.log_start)
            size.add_metric(place, each.size_bytes)
        yield from (watermark, start, size, window)


def _export_order(figures: PartitionFigures) -> tuple[bool, str, int]:
    return figures.topic.startswith(INTERNAL_PREFIX), figures.topic, figures.partition
