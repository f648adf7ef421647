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
from tidelog_loadtest.node.key_index import INDEXED, MOMENTS, PLAIN, KeyedPlan, KeyedResult, Times, keyed, keys_of


def _result() -> KeyedResult:
    result = KeyedResult(KeyedPlan())
    result.rates = {PLAIN: [100.0, 400.0, 200.0], INDEXED: [80.0, 200.0, 140.0]}
    result.stored = 1_000
    result.lookup = result.quiet = result.meanwhile = Times.of([0.001, 0.002, 0.009])
    result.before_bytes, result.after_bytes = 30_000_000, 1_000_000
    result.alone_s, result.pass_s = 1.0, 2.0
    return result


def test_the_ratio_is_computed_per_round() -> None:
    result = _result()
    assert (result.ratio, result.mb_per_s(result.pass_s)) == (0.7, 15.0)
    assert result.lookup is not None
    assert (result.lookup.p50_ms, result.lookup.max_ms) == (2.0, 9.0)
    out = io.StringIO()
    Console(file=out, width=160).print(result.table())
    for figure in ("200 records/s", "0.70", "2.00 ms", "9.00 ms", "30 MB/s", "15 MB/s", "30 -> 1 MB"):
        assert figure in out.getvalue()


def test_the_document_is_complete(tmp_path: Path) -> None:
    document = _result().document(environment_of(tmp_path))
    assert document["records_per_s"] == {PLAIN: 200, INDEXED: 140}
    assert (document["ratio"], document["stored"]) == (0.7, 1_000)
    assert document["lookup"]["p50_ms"] == 2.0
    assert document["compaction"]["mb_per_s"] == 30.0
    assert document["compaction"]["mb_per_s_meanwhile"] == 15.0


def test_keys_are_distinct_and_reproducible() -> None:
    keys = keys_of(range(10_000)).to_pylist()
    assert len(set(keys)) == 10_000
    assert keys_of(range(77, 78)).to_pylist() == [keys[77]]


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[KeyedPlan]()

    async def measured(plan: KeyedPlan, tell: Tell) -> KeyedResult:
        asked.append(plan)
        tell("published", 1)
        return _result()

    monkeypatch.setattr(commands, "keyed", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "keys", "--records", "50", "--lookups", "9", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "keys"
    assert (asked[0].records, asked[0].lookups, asked[0].flush) == (50, 9, "never")


@pytest.mark.e2e
async def test_a_small_run_on_a_real_node(tmp_path: Path) -> None:
    plan = KeyedPlan(20_000, 20, 250_000, batch_records=1_000, rounds=1, seconds=0.2, data=tmp_path)
    told = list[int]()
    result = await keyed(plan, lambda _, done: told.append(done))
    assert told == list(range(1, MOMENTS + 2 * plan.rounds + 1))
    assert result.stored >= 20_000
    assert result.after_bytes < result.before_bytes / 2
    assert all(rates[0] > 0 for rates in result.rates.values())
    assert result.lookup is not None
    assert result.meanwhile is not None
