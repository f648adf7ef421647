from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tidelog_broker.base.node_gauges import (
    Bounded,
    GroupGauges,
    GroupPosition,
    NodeFigures,
    NodeGauges,
    read_with_retries,
)

FIGURES = NodeFigures(
    "log1", "east", "ab", True, 10, 20, False, {"owner": 3}, 1, 2, 0, 0, {"alive": 3}, {"log2": 7}, 2, 3
)


def test_disturbed_read_is_repeated() -> None:
    tries: list[int] = []

    def read() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return 7

    assert read_with_retries(read) == 7
    assert len(tries) == 3


def test_read_gives_up_after_repeated_disturbance() -> None:
    tries: list[int] = []

    def read() -> int:
        tries.append(1)
        raise RuntimeError("dictionary changed size during iteration")

    with pytest.raises(RuntimeError):
        read_with_retries(read)
    assert len(tries) == 5


def test_only_the_build_is_exported_before_the_start() -> None:
    registry = CollectorRegistry()
    gauges = NodeGauges(registry, "1.2.3")
    text = generate_latest(registry).decode()
    values = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line.split("{")[0] for line in values] == ["tidelog_build_info"]
    gauges.watch(lambda: FIGURES)
    text = generate_latest(registry).decode()
    assert 'tidelog_node_info{cluster="ab",node="log1",zone="east"} 1.0' in text
    assert "tidelog_disk_free_bytes 10.0" in text
    assert 'tidelog_replica_lag_records{peer="log2"} 7.0' in text
    assert "tidelog_ready 1.0" in text


def test_group_positions_are_exported_and_omitted_ones_counted() -> None:
    registry = CollectorRegistry()
    gauges = GroupGauges(registry)
    gauges.watch(lambda: Bounded([GroupPosition('a"b', "t", 3, 9)], 4))
    text = generate_latest(registry).decode()
    assert 'tidelog_group_next_offset{group="a\\"b",partition="3",topic="t"} 9.0' in text
    assert gauges.omitted == 4
