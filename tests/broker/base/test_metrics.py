"""The node's metrics: each has help and a unit, and the registries of two nodes are separate."""

from __future__ import annotations

from prometheus_client import generate_latest

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_proto.process.hot_path_metrics import LABEL_VALUES_MAX


def test_registries_are_independent() -> None:
    one, two = NodeMetrics(), NodeMetrics()
    one.records_in.inc(5)
    assert b"tidelog_records_in_total 5.0" in generate_latest(one.registry)
    assert b"tidelog_records_in_total 0.0" in generate_latest(two.registry)


def test_every_metric_has_a_prefix_and_help() -> None:
    text = generate_latest(NodeMetrics().registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert names
    assert all(name.startswith(("tidelog_", "process_")) for name in names), "process_ is Prometheus' own prefix"
    assert all(len(line.split(maxsplit=3)) == 4 for line in text.splitlines() if line.startswith("# HELP"))


def test_throttled_callers_beyond_the_limit_share_a_label() -> None:
    metrics = NodeMetrics()
    for number in range(LABEL_VALUES_MAX + 5):
        metrics.throttled(f"10.0.0.{number}", 0.5)
    metrics.throttled("10.0.0.0", 0.25)
    value = metrics.registry.get_sample_value
    assert value("tidelog_throttled_seconds_total", {"caller": "10.0.0.0"}) == 0.75
    assert value("tidelog_throttled_seconds_total", {"caller": "(other)"}) == 2.5
