"""Conversion between the metrics library and `Families`, and to Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tidelog_gateway.metrics.merged_metrics import Families, family


def families_of(registry: CollectorRegistry) -> Families:
    """Return the metrics of this process."""
    return {
        metric.name: family(
            metric.type,
            metric.documentation,
            {orjson.dumps([sample.name, sample.labels]).decode(): sample.value for sample in metric.samples},
        )
        for metric in registry.collect()
    }


def metrics_in(families: Families) -> Iterator[Metric]:
    """Yield families as objects of the metrics library."""
    for name, each in families.items():
        metric = Metric(name, each["help"], each["kind"])
        for key, value in each["samples"].items():
            sample_name, labels = orjson.loads(key)
            metric.add_sample(sample_name, labels, value)
        yield metric


def page_of(families: Families) -> bytes:
    """Return families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    return generate_latest(registry)


class _Given(Collector):
    def __init__(self, families: Families) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yield the families."""
        return metrics_in(self._families)
