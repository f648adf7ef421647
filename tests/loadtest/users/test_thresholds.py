from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_loadtest.users.thresholds import Figures, judge, read_figures, read_moments

STATS = """\
Type,Name,Request Count,Failure Count,Requests/s,50%,95%,99%
POST,one,200,1,20.5,2,30,60
WS,two,0,0,0.0,N/A,N/A,N/A
,Aggregated,200,1,20.5,2,30,60
"""
HISTORY = """\
Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,95%
1700000000,2,,Aggregated,0.0,0.0,N/A,N/A
1700000003,4,POST,one,20.0,0.5,2,30
"""


def test_the_files_of_locust_are_parsed(tmp_path: Path) -> None:
    stats, history = tmp_path / "stats.csv", tmp_path / "history.csv"
    stats.write_text(STATS)
    history.write_text(HISTORY)
    one, two = read_figures(stats)
    assert (one.name, one.requests, one.failures, one.per_s, one.p95_ms) == ("one", 200, 1, 20.5, 30.0)
    assert (two.requests, two.p95_ms) == (0, 0.0)
    first, last = read_moments(history)
    assert (first.at_s, first.p95_ms, last.at_s, last.users, last.p95_ms) == (0, None, 3, 4, 30.0)


ONE = Figures("one", requests=200, failures=1, per_s=20.0, p50_ms=2, p95_ms=30, p99_ms=60)


@pytest.mark.parametrize(
    ("p95_ms", "min_per_s", "failures_max", "broken"),
    [
        ({"one": 30}, {"one": 20}, 0.005, []),
        ({"one": 29}, {}, 0.005, ["one: p95 29 ms"]),
        ({}, {"one": 20.1}, 0.005, ["one: 20.1/s"]),
        ({}, {}, 0.0, ["one: at most 0.00% fail"]),
    ],
)
def test_each_limit_is_checked(
    p95_ms: dict[str, float], min_per_s: dict[str, float], failures_max: float, broken: list[str]
) -> None:
    verdicts = judge([ONE], ["one"], p95_ms=p95_ms, min_per_s=min_per_s, failures_max=failures_max)
    assert [verdict.what for verdict in verdicts if not verdict.is_kept] == broken


def test_a_kind_without_requests_exceeds_its_limit() -> None:
    verdicts = judge([ONE], ["one", "two"], p95_ms={}, min_per_s={}, failures_max=1)
    assert [verdict.what for verdict in verdicts if not verdict.is_kept] == ["two: requests"]
