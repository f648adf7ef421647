from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.gateway.requests import TARGETS, GatewayPlan
from tidelog_loadtest.gateway.workers import CSV, ScalingFigures, ScalingResult, scaling
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.progress import Tell

NAME = "publish 1 as JSON"


def _result() -> ScalingResult:
    one = [ScalingFigures(1000.0, 100.0, 20.0, 10.0)]
    two = [ScalingFigures(1800.0, 110.0, 25.0, 11.0)]
    return ScalingResult(GatewayPlan(workers=2), {NAME: {1: one, 2: two}})


def test_both_sides_are_listed_with_their_ratio(tmp_path: Path) -> None:
    out = io.StringIO()
    Console(file=out, width=120).print(_result().table())
    assert "1.80" in out.getvalue()
    document = _result().document(environment_of(tmp_path))
    assert document["workloads"][NAME]["cpu_us"] == {"1": 100.0, "2": 110.0}


def test_several_workers_are_compared_with_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(plan: GatewayPlan, tell: Tell) -> ScalingResult:
        tell("round", plan.rounds)
        return _result()

    monkeypatch.setattr(commands, "scaling", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "gateway", "--workers", "2", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "gateway workers"


@pytest.mark.e2e
async def test_one_process_and_several_workers_are_measured_alternately(tmp_path: Path) -> None:
    result = await scaling(GatewayPlan(connections=4, rounds=1, seconds=0.2, data=tmp_path, workers=2))
    shared = set(TARGETS) - {"fetch 100 as JSON, each elsewhere"}
    assert set(result.figures) == shared | {CSV}, "the one left out has many requests"
    for sides in result.figures.values():
        assert {workers: len(figures) for workers, figures in sides.items()} == {1: 1, 2: 1}
        assert all(each.requests_per_s > 0 and each.cpu_us > 0 for found in sides.values() for each in found)
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - a test may look at a directory
