from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.gateway.requests import SIDES, TARGETS, Figures, GatewayPlan, GatewayResult, gateway
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.progress import Tell

NAME = "publish 1 as JSON"


def _result() -> GatewayResult:
    figures = {
        "gateway": [Figures(100.0, 500.0), Figures(200.0, 900.0), Figures(300.0, 1000.0)],
        "probe": [Figures(40.0, 1000.0), Figures(50.0, 1800.0), Figures(60.0, 2000.0)],
    }
    return GatewayResult(GatewayPlan(), {NAME: figures})


def test_a_ratio_is_the_probe_figure_divided_by_the_gateway_figure(tmp_path: Path) -> None:
    result = _result()
    assert result.ratio(NAME, "cpu_us") == pytest.approx(0.25)
    assert result.ratio(NAME, "requests_per_s") == pytest.approx(0.5)
    out = io.StringIO()
    Console(file=out, width=120).print(result.table())
    assert "0.25" in out.getvalue()
    document = result.document(environment_of(tmp_path))
    assert document["workloads"][NAME]["cpu_us"] == {"gateway": 200.0, "probe": 50.0, "ratio": 0.25}


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[GatewayPlan]()

    async def measured(plan: GatewayPlan, tell: Tell) -> GatewayResult:
        asked.append(plan)
        tell("round", 1)
        return _result()

    monkeypatch.setattr(commands, "gateway", measured)
    app = typer.Typer()
    commands.register(app)
    arguments = ["bench", "gateway", "--connections", "4", "--rounds", "9", "--parser", "h11", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "gateway"
    assert (asked[0].connections, asked[0].rounds, asked[0].parser) == (4, 9, "h11")


@pytest.mark.e2e
async def test_both_sides_of_each_workload_are_measured(tmp_path: Path) -> None:
    result = await gateway(GatewayPlan(connections=2, rounds=1, seconds=0.2, data=tmp_path))
    assert set(result.figures) == set(TARGETS)
    for sides in result.figures.values():
        assert {side: len(figures) for side, figures in sides.items()} == dict.fromkeys(SIDES, 1)
        assert all(figures.cpu_us > 0 and figures.requests_per_s > 0 for each in sides.values() for figures in each)
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - a test may look at a directory
