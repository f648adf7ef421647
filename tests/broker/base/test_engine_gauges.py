from __future__ import annotations

from prometheus_client import CollectorRegistry

from tidelog_broker.base.engine_gauges import EngineFigures, EngineGauges


def test_each_figure_of_an_engine_has_a_series() -> None:
    registry = CollectorRegistry()
    gauges = EngineGauges(registry)
    assert [sample for family in registry.collect() for sample in family.samples] == []
    gauges.watch(lambda: {"segment": EngineFigures(1, 2, 3, 4, 5), "memory": EngineFigures(appends=6)})
    series = {
        (sample.name, sample.labels["engine"]): sample.value
        for family in registry.collect()
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert len(series) == 10
    names = ("partitions", "epochs", "bytes", "appends_total", "syncs_total")
    assert [series[f"tidelog_engine_{name}", "segment"] for name in names] == [1, 2, 3, 4, 5]
    assert series["tidelog_engine_appends_total", "memory"] == 6
