"""Figures that locust has written as CSV, and their comparison with limits."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

AGGREGATED: Final = "Aggregated"
_QUANTILES: Final = ("50%", "95%", "99%")


@dataclass(frozen=True, slots=True)
class Figures:
    """Measurements of one kind of request.

    Attributes:
        name: name of the kind.
        requests: number of requests, including failed ones.
        failures: number of failed requests.
        per_s: requests per second over the whole run.
        p50_ms, p95_ms, p99_ms: quantiles of the response time.
    """

    name: str
    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Moment:
    """Measurements at one second of the run, over the last 10 s.

    Attributes:
        at_s: seconds since the first measurement.
        users: number of running users.
        name: name of the kind of request; `AGGREGATED` for all kinds together.
        p95_ms: 95th percentile of the response time; None if there was no request.
    """

    at_s: float
    users: int
    name: str
    per_s: float
    failures_per_s: float
    p95_ms: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """One limit and its result.

    Attributes:
        what: the limit.
        found: the measured value.
        is_kept: whether the value is within the limit.
    """

    what: str
    found: str
    is_kept: bool


def read_figures(path: Path) -> list[Figures]:
    """Return the figures of each kind of request from locust's `…_stats.csv`."""
    return [
        Figures(
            row["Name"],
            int(row["Request Count"]),
            int(row["Failure Count"]),
            float(row["Requests/s"]),
            *(_number(row[quantile]) or 0.0 for quantile in _QUANTILES),
        )
        for row in _rows(path)
        if row["Name"] != AGGREGATED
    ]


def read_moments(path: Path) -> list[Moment]:
    """Return the measurements of each second from locust's `…_stats_history.csv`."""
    rows = _rows(path)
    began = min((int(row["Timestamp"]) for row in rows), default=0)
    return [
        Moment(
            int(row["Timestamp"]) - began,
            int(row["User Count"]),
            row["Name"],
            float(row["Requests/s"]),
            float(row["Failures/s"]),
            _number(row["95%"]),
        )
        for row in rows
    ]


def judge(
    figures: Sequence[Figures],
    expected: Iterable[str],
    *,
    p95_ms: Mapping[str, float],
    min_per_s: Mapping[str, float],
    failures_max: float,
) -> list[Verdict]:
    """Return a verdict for each limit.

    Args:
        figures: the measurements.
        expected: kinds of requests that must occur.
        p95_ms: kind -> highest 95th percentile of the response time; other kinds have no such limit.
        min_per_s: kind -> lowest rate in requests per second.
        failures_max: highest share of failed requests, for each kind.
    """
    of = {each.name: each for each in figures}
    verdicts = []
    for name in dict.fromkeys([*expected, *of]):
        measured = of.get(name)
        if measured is None or not measured.requests:
            verdicts.append(Verdict(f"{name}: requests", "none were made", is_kept=False))
            continue
        share = measured.failures / measured.requests
        limit = f"at most {failures_max:.2%} fail"
        text = f"{measured.failures:,} of {measured.requests:,} ({share:.2%})"
        verdicts.append(Verdict(f"{name}: {limit}", text, is_kept=share <= failures_max))
        if name in p95_ms:
            text = f"{measured.p95_ms:,.0f} ms"
            verdicts.append(Verdict(f"{name}: p95 {p95_ms[name]:,g} ms", text, is_kept=measured.p95_ms <= p95_ms[name]))
        if name in min_per_s:
            text = f"{measured.per_s:,.1f}/s"
            verdicts.append(Verdict(f"{name}: {min_per_s[name]:,g}/s", text, is_kept=measured.per_s >= min_per_s[name]))
    return verdicts


def _rows(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _number(text: str) -> float | None:
    return None if text in {"", "N/A"} else float(text)
