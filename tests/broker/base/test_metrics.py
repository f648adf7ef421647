"""The node's metrics: every one has help and a unit, and two nodes in a process do not meet."""

from __future__ import annotations

from prometheus_client import generate_latest

from tidelog_broker.base.metrics import NodeMetrics


def test_two_registries_are_apart() -> None:
    one, two = NodeMetrics(), NodeMetrics()
    one.records_in.inc(5)
    assert b"tidelog_records_in_total 5.0" in generate_latest(one.registry)
    assert b"tidelog_records_in_total 0.0" in generate_latest(two.registry)


def test_every_metric_is_ours_and_explained() -> None:
    text = generate_latest(NodeMetrics().registry).decode()
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")}
    assert names
    assert all(name.startswith(("tidelog_", "process_")) for name in names), "process_ is Prometheus' own prefix"
    assert all(len(line.split(maxsplit=3)) == 4 for line in text.splitlines() if line.startswith("# HELP"))
