"""Metrics of a node, parsed from the Prometheus format."""

from __future__ import annotations

from prometheus_client.registry import Collector

from tidelog_broker.node.node import Node


def counted(metric: Collector) -> float:
    """Return the value of a counter that has no labels."""
    (family,) = metric.collect()
    return next(sample.value for sample in family.samples if sample.name.endswith("_total"))


def value_of(node: Node, name: str) -> float:
    """Return the value of a metric without labels."""
    value = node.broker.metrics.registry.get_sample_value(name)
    assert value is not None, f"there is no {name}"
    return value
