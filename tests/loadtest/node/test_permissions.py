from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.progress import Tell
from tidelog_loadtest.node.permissions import Cost, PermissionsPlan, PermissionsResult, permissions


def _result() -> PermissionsResult:
    free = [Cost(10.0, 100.0), Cost(10.0, 200.0), Cost(10.0, 300.0)]
    asks = [Cost(11.0, 104.0), Cost(10.0, 204.0), Cost(10.0, 303.0)]
    return PermissionsResult(PermissionsPlan(), {"open": free, "asks": asks})


def test_the_ratio_is_computed_per_round_and_not_from_medians(tmp_path: Path) -> None:
    result = _result()
    assert result.median("asks", "node_us") == 204.0
    assert result.ratio("node_us") == pytest.approx(1.02)
    out = io.StringIO()
    Console(file=out, width=120).print(result.table())
    assert "1.020" in out.getvalue()
    document = result.document(environment_of(tmp_path))
    assert document["node_us"] == {"open": 200.0, "asks": 204.0, "ratio": 1.02}


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[PermissionsPlan]()

    async def measured(plan: PermissionsPlan, tell: Tell) -> PermissionsResult:
        asked.append(plan)
        tell("round", 1)
        return _result()

    monkeypatch.setattr(commands, "permissions", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "permissions", "--rules", "3", "--rounds", "9", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "permissions"
    assert (asked[0].rules, asked[0].rounds) == (3, 9)


@pytest.mark.e2e
async def test_each_round_publishes_to_both_nodes(tmp_path: Path) -> None:
    result = await permissions(PermissionsPlan(records=20, rules=2, rounds=2, data=tmp_path))
    assert {kind: len(costs) for kind, costs in result.costs.items()} == {"open": 2, "asks": 2}
    assert all(cost.node_us > 0 and cost.client_us > 0 for costs in result.costs.values() for cost in costs)
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - a test may look at a directory
