"""Tallies and durations are exported like Prometheus' own counters and histograms."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from tidelog_proto.process.hot_path_metrics import LABEL_VALUES_MAX, Durations, TallyCounter

BOUNDS_S = (0.001, 0.5, 1.0)


def test_tallies_are_separate_per_label_value() -> None:
    registry = CollectorRegistry()
    kinds = TallyCounter("tidelog_asked", "Asked", registry, label="kind")
    kinds.tally("a").inc()
    kinds.tally("a").inc(2)
    kinds.tally("b")
    TallyCounter("tidelog_all", "All", registry).tally().inc(7)
    text = generate_latest(registry).decode()
    assert 'tidelog_asked_total{kind="a"} 3.0' in text
    assert 'tidelog_asked_total{kind="b"} 0.0' in text
    assert "tidelog_all_total 7.0" in text
    assert "# TYPE tidelog_all_total counter" in text


def test_label_values_beyond_the_limit_share_a_tally() -> None:
    registry = CollectorRegistry()
    callers = TallyCounter("tidelog_held", "Held", registry, label="caller")
    for number in range(3 * LABEL_VALUES_MAX):
        callers.tally(f"caller{number}").inc(2)
    callers.tally("caller0").inc(1)
    text = generate_latest(registry).decode()
    assert text.count("tidelog_held_total{") == LABEL_VALUES_MAX + 1
    assert 'tidelog_held_total{caller="caller0"} 3.0' in text
    assert f'tidelog_held_total{{caller="(other)"}} {float(4 * LABEL_VALUES_MAX)}' in text


def test_durations_equal_prometheus_histograms() -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    ours = Durations("tidelog_s", "Seconds", mine, bounds_s=BOUNDS_S)
    reference = Histogram("tidelog_s", "Seconds", buckets=BOUNDS_S, registry=theirs)
    for seconds in (0.0, 0.001, 0.0011, 0.5, 0.75, 1.0, 3.0):
        ours.observe(seconds)
        reference.observe(seconds)
    expected = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert generate_latest(mine).decode().splitlines() == expected
