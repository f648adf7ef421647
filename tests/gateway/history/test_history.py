from __future__ import annotations

import pytest

from tidelog.model import TopicFigures
from tidelog_gateway.history import history as module
from tidelog_gateway.history.history import POINTS, GatewayCounters, GatewayPoint, History, Rate

ID = bytes(16)


def figures(end: int, size: int = 0, *, topic_id: bytes = ID, idle: int = 0) -> TopicFigures:
    return TopicFigures(topic_id, 1, end, end, size, idle)


def add(history: History, at_s: float, gateway: GatewayCounters | None = None, **topics: TopicFigures) -> None:
    history.add(int(1000 * at_s), topics, gateway or GatewayCounters())


def test_without_samples_everything_is_unknown() -> None:
    history = History()
    assert history.rate("t") is None
    assert history.topic_points("t") == ([], [])
    assert history.total_points() == ([], [])
    assert history.gateway_points() == []


def test_a_rate_covers_the_last_half_minute() -> None:
    history = History()
    for at_s, end in ((0, 0), (10, 1000), (20, 1100), (30, 1200), (40, 1300)):
        add(history, at_s, t=figures(end, 10 * end))
    assert history.rate("t") == Rate(10.0, 100.0)


def test_a_rate_of_distant_samples_covers_the_last_two() -> None:
    history = History()
    for at_s, end in ((0, 0), (100, 100), (200, 700)):
        add(history, at_s, t=figures(end))
    assert history.rate("t") == Rate(6.0, 0.0)


def test_a_recreated_topic_has_no_rate_across_samples() -> None:
    history = History()
    add(history, 0, t=figures(10))
    add(history, 10, t=figures(500, topic_id=b"b" * 16))
    assert history.rate("t") is None
    assert history.topic_points("t") == ([None, None], [None, 0])


def test_a_partition_opened_in_between_makes_the_rate_unknown() -> None:
    history = History()
    add(history, 0, t=figures(10, idle=1))
    add(history, 10, t=figures(1_000_000))
    assert history.rate("t") is None
    add(history, 20, t=figures(1_000_010))
    assert history.topic_points("t")[0] == [None, None, Rate(1.0, 0.0)]


def test_a_lower_end_makes_the_rate_unknown() -> None:
    history = History()
    add(history, 0, t=figures(10))
    add(history, 10, t=figures(5))
    assert history.rate("t") is None


def test_a_deleted_topic_is_dropped_and_totals_continue() -> None:
    history = History()
    add(history, 0, t=figures(10, 1), u=figures(0, 2))
    add(history, 10, u=figures(50, 3))
    assert history.topic_points("t") == ([None, None], [None, None])
    assert history.total_points() == ([None, 5.0], [3, 3])


def test_a_topic_that_drops_out_of_the_first_ones_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    history = History()
    add(history, 0, t=figures(10, 1), u=figures(10, 2))
    add(history, 10, s=figures(10, 3), t=figures(20, 4), u=figures(20, 5))
    assert history.topic_points("t") == ([None, Rate(1.0, 0.3)], [1, 4])
    assert history.topic_points("u") == ([None, None], [None, None])


def test_samples_of_an_hour_are_kept() -> None:
    history = History()
    for index in range(POINTS + 7):
        add(history, 10 * (index + 1), t=figures(index * 20, index))
    assert len(history.times_ms) == POINTS
    rates, sizes = history.topic_points("t")
    assert sizes == list(range(7, POINTS + 7))
    assert rates == [None] + [Rate(2.0, 0.1)] * (POINTS - 1)
    assert len(history.gateway_points()) == POINTS


def test_a_clock_that_was_set_back_discards_older_samples() -> None:
    history = History()
    add(history, 100, t=figures(10))
    add(history, 50, t=figures(20))
    assert history.times_ms == [50_000]
    assert history.rate("t") is None


def test_topics_with_samples_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    history = History()
    for at_s in (0, 10):
        add(history, at_s, a=figures(at_s), b=figures(at_s), c=figures(at_s))
    assert history.rate("b") == Rate(1.0, 0.0)
    assert history.rate("c") is None
    assert set(history.newest) == {"a", "b", "c"}


def test_gateway_points_are_differences_of_samples() -> None:
    history = History()
    before = GatewayCounters(100, 1000, 10, {0.001: 50, 0.01: 60, float("inf"): 60})
    after = GatewayCounters(300, 2000, 20, {0.001: 148, 0.01: 159, float("inf"): 160})
    add(history, 0, before)
    add(history, 10, after)
    add(history, 20, after)
    assert history.gateway_points() == [
        None,
        GatewayPoint(20.0, 100.0, 1.0, 1.0, 10.0),
        GatewayPoint(0.0, 0.0, 0.0, None, None),
    ]
