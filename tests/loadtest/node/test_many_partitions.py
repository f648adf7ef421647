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
from tidelog_loadtest.node.many_partitions import MOMENTS, ManyPlan, ManyResult, Moment, many_partitions


def _result() -> ManyResult:
    moments = [Moment("made", 1.5, 60 << 20, 1_200, 0.004)]
    return ManyResult(ManyPlan(), moments, {10: [100.0, 300.0, 200.0], 1_000: [150.0]}, 0.25, 4096)


def test_spreads_are_limited_by_the_number_of_partitions() -> None:
    assert ManyPlan().spreads == [10, 100, 1_000]
    assert ManyPlan(partitions=100).spreads == [10, 100]
    assert ManyPlan(partitions=3).spreads == [3]


def test_rates_are_medians_relative_to_the_smallest_spread() -> None:
    assert _result().rate(10) == 200.0
    out = io.StringIO()
    Console(file=out, width=120).print(_result().table())
    assert "60 MiB" in out.getvalue()
    assert "0.4 %" in out.getvalue()
    assert "0.75" in out.getvalue()


def test_the_document_is_complete(tmp_path: Path) -> None:
    document = _result().document(environment_of(tmp_path))
    assert document["records_per_s"] == {"10": 200, "1000": 150}
    assert document["moments"][0]["open_files"] == 1_200
    assert (document["stopped_s"], document["disk_bytes"]) == (0.25, 4096)


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[ManyPlan]()

    async def measured(plan: ManyPlan, tell: Tell) -> ManyResult:
        asked.append(plan)
        tell("made", 1)
        return _result()

    monkeypatch.setattr(commands, "many_partitions", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "partitions", "--partitions", "50", "--used", "99", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "partitions"
    assert (asked[0].partitions, asked[0].used, asked[0].flush) == (50, 50, "never")


@pytest.mark.long
@pytest.mark.e2e
async def test_three_thousand_partitions_on_a_real_node(tmp_path: Path) -> None:
    plan = ManyPlan(3_000, used=20, batch_records=10, rounds=1, seconds=0.2, idle_s=0.2, data=tmp_path)
    told = list[int]()
    result = await many_partitions(plan, lambda _, done: told.append(done))
    assert told == list(range(1, MOMENTS + len(plan.spreads) + 1))
    by_step = {moment.step: moment for moment in result.moments}
    assert by_step["made"].open_files < 150, "a partition that was never used has a file"
    assert by_step["restarted"].open_files < 150
    assert by_step["restarted after a kill"].open_files < 150
    assert by_step["used"].open_files > 1_000
    assert all(rates[0] > 0 for rates in result.rates.values())
