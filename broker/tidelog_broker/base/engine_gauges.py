"""Metrics of a node's storage engines, computed at each scrape.

The label `engine` has the names that describe epochs: `segment-shared` is the engine segment with the shared file
model, `memory-async` is the engine memory with `flush=async`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tidelog_broker.base.node_gauges import read_with_retries


class EngineFigures(NamedTuple):
    """The exported figures of one engine.

    Attributes:
        partitions: number of open partitions whose new records it stores.
        epochs, size_bytes: epochs of open partitions that it stores, and their size.
        appends, syncs: see `EngineTally`.
    """

    partitions: int = 0
    epochs: int = 0
    size_bytes: int = 0
    appends: int = 0
    syncs: int = 0


class EngineGauges(Collector):
    """Exports `EngineFigures` by engine."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._read: Callable[[], Mapping[str, EngineFigures]] = dict
        registry.register(self)

    def watch(self, read: Callable[[], Mapping[str, EngineFigures]]) -> None:
        """Export these figures from now on; `read` may be called on any thread."""
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        labels = ["engine"]
        partitions = GaugeMetricFamily(
            "tidelog_engine_partitions", "Open partitions whose new records the engine stores", labels=labels
        )
        epochs = GaugeMetricFamily(
            "tidelog_engine_epochs", "Epochs of open partitions that the engine stores", labels=labels
        )
        size = GaugeMetricFamily(
            "tidelog_engine_bytes", "Bytes of the epochs of open partitions that the engine stores", labels=labels
        )
        appends = CounterMetricFamily(
            "tidelog_engine_appends", "Groups of batches appended to epochs of the engine", labels=labels
        )
        syncs = CounterMetricFamily(
            "tidelog_engine_syncs",
            "Syncs that acknowledgements waited for; with `file_model=shared` one covers many partitions",
            labels=labels,
        )
        for engine, figures in sorted(read_with_retries(self._read).items()):
            partitions.add_metric([engine], figures.partitions)
            epochs.add_metric([engine], figures.epochs)
            size.add_metric([engine], figures.size_bytes)
            appends.add_metric([engine], figures.appends)
            syncs.add_metric([engine], figures.syncs)
        yield from (partitions, epochs, size, appends, syncs)
