"""Gauges of the open partitions of a node, computed at each scrape.

The partitions of a topic have series of their own if all of them fit within the limit; otherwise the topic has one
series for the sum of its partitions. Topics beyond the limit of sums are omitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog_broker.base.node_gauges import read_with_retries
from tidelog_proto.names import INTERNAL_PREFIX

_OF_A_TOPIC: Final = "of a topic whose partitions have no series of their own"


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


class HasFigures(Protocol):
    """A partition."""

    @property
    def figures(self) -> PartitionFigures:
        """The current figures. Thread-safe."""
        ...


class TopicFigures(NamedTuple):
    """The sums of the figures of a topic's open partitions."""

    topic: str
    partitions: int
    high_watermarks: int
    log_starts: int
    size_bytes: int


class _Exported(NamedTuple):
    partitions: list[PartitionFigures]
    topics: list[TopicFigures]
    omitted: int


class PartitionGauges(Collector):
    """Gauges of open partitions, or of their topics, computed at each scrape.

    Topics are added by name, internal ones last, so that each scrape exports the same ones.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._topics: Callable[[], Iterable[tuple[str, Sequence[HasFigures]]]] = tuple
        self._partitions_max = 0
        self.omitted = 0
        """Number of partitions that the last scrape exported neither by themselves nor in a sum."""
        registry.register(self)

    def watch(self, topics: Callable[[], Iterable[tuple[str, Sequence[HasFigures]]]], partitions_max: int) -> None:
        """Export the open partitions of these topics from now on.

        Args:
            topics: returns the names of the topics, each with its open partitions; may be called on any thread.
            partitions_max: maximum number of partitions with series of their own, and of topics with sums.
        """
        self._topics, self._partitions_max = topics, partitions_max

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics for a scrape."""
        exported = read_with_retries(self._exported)
        self.omitted = exported.omitted
        yield from _partition_families(exported.partitions)
        yield from _topic_families(exported.topics)

    def _exported(self) -> _Exported:
        exported, omitted = _Exported([], [], 0), 0
        for name, partitions in sorted(self._topics(), key=_export_order):
            if len(exported.partitions) + len(partitions) <= self._partitions_max:
                exported.partitions.extend(sorted(partition.figures for partition in partitions))
            elif len(exported.topics) < self._partitions_max:
                exported.topics.append(_sums(name, partitions))
            else:
                omitted += len(partitions)
        return exported._replace(omitted=omitted)


def _sums(topic: str, partitions: Sequence[HasFigures]) -> TopicFigures:
    high_watermarks = log_starts = size_bytes = 0
    for partition in partitions:
        figures = partition.figures
        high_watermarks += figures.high_watermark
        log_starts += figures.log_start
        size_bytes += figures.size_bytes
    return TopicFigures(topic, len(partitions), high_watermarks, log_starts, size_bytes)


def _partition_families(partitions: Iterable[PartitionFigures]) -> Iterator[Metric]:
    labels = ["topic", "partition"]
    watermark = GaugeMetricFamily("tidelog_high_watermark_offset", "End of the committed records", labels=labels)
    start = GaugeMetricFamily("tidelog_log_start_offset", "First readable offset", labels=labels)
    size = GaugeMetricFamily("tidelog_partition_bytes", "Bytes of segments", labels=labels)
    window = GaugeMetricFamily(
        "tidelog_deduplication_window_records", "Records in the deduplication window", labels=labels
    )
    for each in partitions:
        place = [each.topic, str(each.partition)]
        if each.window_records is not None:
            window.add_metric(place, each.window_records)
        watermark.add_metric(place, each.high_watermark)
        start.add_metric(place, each.log_start)
        size.add_metric(place, each.size_bytes)
    yield from (watermark, start, size, window)


def _topic_families(topics: Iterable[TopicFigures]) -> Iterator[Metric]:
    labels = ["topic"]
    count = GaugeMetricFamily("tidelog_topic_open_partitions", f"Open partitions {_OF_A_TOPIC}", labels=labels)
    watermark = GaugeMetricFamily(
        "tidelog_topic_high_watermarks", f"Sum of the ends of the committed records {_OF_A_TOPIC}", labels=labels
    )
    start = GaugeMetricFamily(
        "tidelog_topic_log_starts", f"Sum of the first readable offsets {_OF_A_TOPIC}", labels=labels
    )
    size = GaugeMetricFamily("tidelog_topic_bytes", f"Bytes of segments {_OF_A_TOPIC}", labels=labels)
    for each in topics:
        place = [each.topic]
        count.add_metric(place, each.partitions)
        watermark.add_metric(place, each.high_watermarks)
        start.add_metric(place, each.log_starts)
        size.add_metric(place, each.size_bytes)
    yield from (count, watermark, start, size)


def _export_order(topic: tuple[str, Sequence[HasFigures]]) -> tuple[bool, str]:
    return topic[0].startswith(INTERNAL_PREFIX), topic[0]
