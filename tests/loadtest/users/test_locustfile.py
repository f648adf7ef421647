"""Locust patches the standard library when it is imported, so these tests run it as another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog_loadtest
from tidelog_loadtest.users.mixes import MIX_VARIABLE, MIXES, SECONDS_VARIABLE, USERS_VARIABLE, reported_by
from tidelog_loadtest.users.thresholds import judge, read_figures

LOCUSTFILE = Path(tidelog_loadtest.__file__).with_name("users") / "locustfile.py"


def test_locust_finds_every_user() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--list"], capture_output=True, text=True, check=True
    )
    for user in ("SingleUser", "BulkUser", "StreamUser", "WebSocketUser", "NativeUser"):
        assert user in listed.stdout


@pytest.mark.e2e
def test_users_without_a_gateway_break_limits(tmp_path: Path) -> None:
    variables = {MIX_VARIABLE: "live", SECONDS_VARIABLE: "2", USERS_VARIABLE: "8"}
    options = [
        "--host",
        "http://127.0.0.1:1",
        "--headless",
        "--csv",
        str(tmp_path / "run"),
        "--exit-code-on-error",
        "0",
    ]
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), *options, *MIXES["live"]]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | variables, timeout=60)
    assert ended.returncode == 0, ended.stderr
    figures = read_figures(tmp_path / "run_stats.csv")
    verdicts = judge(figures, reported_by("live"), p95_ms={}, min_per_s={}, failures_max=0.5)
    broken = [verdict.what for verdict in verdicts if not verdict.is_kept]
    assert "unhandled exception: at most 50.00% fail" in broken
    assert "sse: publish to arrival: requests" in broken
    assert "websocket: publish to arrival: requests" in broken
    assert any(what.startswith("single: publish 1 record") for what in broken)
