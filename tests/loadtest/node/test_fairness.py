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
from tidelog_loadtest.node.fairness import STAGES, FairnessPlan, FairnessResult, Stretch, fairness


def _result() -> FairnessResult:
    quiet = [Stretch(1.0, p99_ms, 0.0) for p99_ms in (2.0, 4.0, 3.0)]
    flooded = [Stretch(5.0, 30.0, 2.0**20)]
    return FairnessResult(FairnessPlan(), {"quiet": quiet, "flooded": flooded})


def test_each_p99_is_compared_with_the_one_without_load(tmp_path: Path) -> None:
    result = _result()
    assert (result.median("quiet", "p99_ms"), result.ratio("quiet"), result.ratio("flooded")) == (3.0, 1.0, 10.0)
    out = io.StringIO()
    Console(file=out, width=120).print(result.table())
    assert "10.00" in out.getvalue()
    assert "1.0 MiB/s" in out.getvalue()
    document = result.document(environment_of(tmp_path))
    assert document["stages"]["flooded"] == {
        "p50_ms": 5.0,
        "p99_ms": 30.0,
        "p99_of_quiet": 10.0,
        "flood_bytes_per_s": 1 << 20,
    }


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[FairnessPlan]()

    async def measured(plan: FairnessPlan, tell: Tell) -> FairnessResult:
        asked.append(plan)
        tell("quiet", 1)
        return _result()

    monkeypatch.setattr(commands, "fairness", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "fairness", "--quota-mib", "3", "--connections", "9", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "fairness"
    assert (asked[0].quota_bytes, asked[0].connections) == (3 << 20, 9)


async def test_a_quota_limits_a_flood_to_its_rate(tmp_path: Path) -> None:
    plan = FairnessPlan(connections=2, batch_bytes=64 << 10, quota_bytes=1 << 20, rounds=1, seconds=1.0, data=tmp_path)
    result = await fairness(plan)
    assert set(result.stretches) == set(STAGES)
    assert result.median("quiet", "flood_bytes_per_s") == 0
    held, free = (result.median(stage, "flood_bytes_per_s") for stage in ("flooded, quota", "flooded"))
    assert 0 < held < 2.5 * (1 << 20)
    assert free > held
