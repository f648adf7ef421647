from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog_loadtest.users.mixes import P95_MS, reported_by
from tidelog_loadtest.users.run import judged, plan_of

STATS = "Type,Name,Request Count,Failure Count,Requests/s,50%,95%,99%\nPOST,bulk: publish 1000 records,9,0,2,5,20,30\n"
HISTORY = "Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,95%\n1700000000,2,,Aggregated,0,0,N/A,N/A\n"


def test_limits_are_set_by_kind() -> None:
    plan = plan_of(["--mix", "bulk", "--p95-ms", "bulk: publish 1000 records=50", "--min-rate", f"{_BULK}=3"])
    assert plan.p95_ms == {**P95_MS, _BULK: 50.0}
    assert plan.min_per_s == {_BULK: 3.0}


_BULK = reported_by("bulk")[0]


@pytest.mark.parametrize(
    "words",
    [
        ["--users", "1"],
        ["--seconds", "0"],
        ["--mix", "none"],
        ["--workers", "0"],
        ["--html", "/missing/report.html"],
        ["--failures-max", "2"],
        ["--p95-ms", "single: fetch"],
        ["--p95-ms", "single: fetch=-1"],
        ["--p95-ms", "single: fetch=nan"],
        ["--p95-ms", "nothing=5"],
        ["--mix", "bulk", "--min-rate", "single: fetch=5"],
    ],
)
def test_an_invalid_option_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        plan_of(words)
    assert words[-1].partition("=")[0] in capsys.readouterr().err


def test_a_broken_limit_fails_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run_stats.csv").write_text(STATS)
    (tmp_path / "run_stats_history.csv").write_text(HISTORY)
    plan = plan_of(["--mix", "bulk", "--html", str(tmp_path / "report.html")])
    assert judged(plan, tmp_path) == 0
    assert judged(replace(plan, min_per_s={_BULK: 3.0}), tmp_path) == 1
    assert f"limit exceeded: {_BULK}: 3/s; measured: 2.0/s" in capsys.readouterr().out
    assert "1 of 3 limits exceeded" in plan.html.read_text()


@pytest.mark.e2e
@pytest.mark.machine
@pytest.mark.long
def test_a_short_load_test_of_every_kind_of_user_keeps_its_limits(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "tidelog_loadtest.users.run", "--seconds", "6", "--users", "8", "--workers", "2"]
    slow = [word for name in reported_by("all") for word in ("--p95-ms", f"{name}=30000")]  # the machine may be busy
    ended = subprocess.run(
        [*command, *slow, "--html", str(report)], capture_output=True, text=True, check=False, timeout=200
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for name in reported_by("all"):
        assert name in ended.stdout + ended.stderr
        assert name in report.read_text()
