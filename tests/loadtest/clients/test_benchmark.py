from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from tidelog_loadtest import commands
from tidelog_loadtest.clients.benchmark import LOOPS, ClientPlan, ClientResult, LoopResult, measure_client
from tidelog_loadtest.clients.client_loops import ONE_BY_ONE, Timed
from tidelog_loadtest.measure.environment import environment_of
from tidelog_loadtest.measure.progress import Tell


def _result(*, kafka: bool) -> ClientResult:
    put = LoopResult("put", "produce()", [Timed(100, each, 0.0001) for each in (0.1, 0.4, 0.2)])
    lone = LoopResult(ONE_BY_ONE, None, [Timed(10, 1.0, 0.0001, 0.00012)])
    if kafka:
        put.kafka_runs = [Timed(100, each, 0.0002) for each in (0.2, 0.2, 0.6)]
    return ClientResult(ClientPlan(), "9.9" if kafka else None, {"put": put, ONE_BY_ONE: lone})


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    result = _result(kafka=True)
    assert result.loops["put"].ratio == pytest.approx(2.0)
    assert result.loops[ONE_BY_ONE].ratio is None


@pytest.mark.parametrize("kafka", [False, True])
def test_results_are_a_table_or_a_document(tmp_path: Path, *, kafka: bool) -> None:
    result, out = _result(kafka=kafka), io.StringIO()
    Console(file=out, width=180).print(result.table())
    for figure in ("500", "1,000 ns", "p50 0.120 ms"):
        assert figure in out.getvalue()
    assert ("confluent-kafka 9.9" in out.getvalue()) is kafka
    document = result.document(environment_of(tmp_path))
    first, second = document["loops"]
    assert (document["benchmark"], document["confluent_kafka"]) == ("client", "9.9" if kafka else None)
    assert (first["loop"], first["records_per_s"], first["cpu_ns_per_record"], first["p50_ms"]) == (
        "put",
        500,
        1000,
        None,
    )
    assert second["p50_ms"] == 0.12
    assert ("ratio" in first) is kafka
    if kafka:
        assert first["kafka"] == {"call": "produce()", "records_per_s": 500, "cpu_ns_per_record": 2000, "p50_ms": None}


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[ClientPlan]()

    async def measured(plan: ClientPlan, tell: Tell) -> ClientResult:
        asked.append(plan)
        tell("put", 1)
        return _result(kafka=False)

    monkeypatch.setattr(commands, "measure_client", measured)
    app = typer.Typer()
    commands.register(app)
    done = CliRunner().invoke(app, ["bench", "client", "--records", "50", "--kafka", "h:1", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "client"
    assert (asked[0].records, asked[0].kafka, asked[0].partitions, asked[0].flush) == (50, "h:1", 4, "never")


@pytest.mark.e2e
async def test_a_small_run_on_a_real_node(tmp_path: Path) -> None:
    plan = ClientPlan(records=2_500, rounds=1, data=tmp_path)
    told = list[int]()
    result = await measure_client(plan, lambda _, done: told.append(done))
    assert told == list(range(plan.steps))
    assert tuple(result.loops) == LOOPS
    for name, loop in result.loops.items():
        assert [run.records for run in loop.runs] == [2_000 if name == ONE_BY_ONE else 2_500]
        assert loop.kafka_name is None
    assert result.loops[ONE_BY_ONE].runs[0].p50_s is not None
    assert next(tmp_path.iterdir(), None) is None  # noqa: ASYNC240 - a test may look at a directory
