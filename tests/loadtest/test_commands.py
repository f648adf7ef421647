from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner
from typer.testing import Result as Outcome

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest import commands
from tidelog_loadtest.measure.footprint import Watch
from tidelog_loadtest.measure.product import FlushName
from tidelog_loadtest.measure.results import Result, Side
from tidelog_loadtest.measure.runs import Run
from tidelog_loadtest.node import records

KEYS = {"records_per_s", "mb_per_s", "latency_ms", "cpu_s", "probe_records_per_s", "ratio"}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[records.Plan]:
    """The parameters that a command passed, instead of running the benchmark."""
    asked: list[records.Plan] = []

    async def measured(plan: records.Plan, flush: FlushName) -> Result:
        asked.append(plan)
        watch = Watch({"client": 1})
        watch.cpu_s = {"client": 1.0}
        side = Side([Run(10, 1, 1_000, [5], 1_000)], [watch])
        return Result("produce", flush, plan.size_bytes, plan.batch_records, side, side, 1.0)

    for name in ("produce", "consume", "latency"):
        monkeypatch.setattr(records, name, measured)
    return asked


def _run(*arguments: str) -> Outcome:
    app = typer.Typer()
    commands.register(app)
    app.command("other")(lambda: None)  # a single sub-command would become the app itself
    return CliRunner().invoke(app, ["bench", *arguments])


def _invoke(*arguments: str) -> tuple[int, str]:
    result = _run(*arguments)
    return result.exit_code, result.stdout


def test_progress_goes_to_stderr(plans: list[records.Plan]) -> None:
    said = _run("produce", "--flush", "both", "--rounds", "2").stderr
    assert [line.split(",")[0] for line in said.splitlines()] == [
        "measuring with flush=never",
        "measuring with flush=always",
    ]
    assert len(plans) == 2


@pytest.mark.parametrize("name", ["produce", "consume", "latency"])
def test_json_has_the_documented_keys(plans: list[records.Plan], name: str) -> None:
    code, output = _invoke(name, "--size", "12", "--json")
    assert code == 0
    assert json.loads(output).keys() >= KEYS
    assert plans[0].size_bytes == 12


def test_both_flush_settings_print_a_list(plans: list[records.Plan]) -> None:
    _, output = _invoke("produce", "--flush", "both", "--json", "--records", "5000")
    assert [document["flush"] for document in json.loads(output)] == ["never", "always"]
    assert [plan.records for plan in plans] == [5_000, 5_000]


def test_the_default_output_is_a_table(plans: list[records.Plan]) -> None:
    code, output = _invoke("produce")
    assert code == 0
    assert "limit" in output
    assert len(plans) == 1


@pytest.mark.parametrize("name", ["produce", "latency"])
def test_a_cluster_is_measured_on_request(plans: list[records.Plan], name: str) -> None:
    code, _ = _invoke(name, "--nodes", "3")
    assert code == 0
    assert [plan.nodes for plan in plans] == [3]


def test_consuming_is_measured_on_one_node(plans: list[records.Plan]) -> None:
    code, _ = _invoke("consume", "--nodes", "3")
    assert code == 2
    assert not plans


def test_running_nodes_are_not_started(plans: list[records.Plan]) -> None:
    outcome = _run("produce", "--nodes", "3", "--bootstrap", "127.0.0.1:1")
    assert isinstance(outcome.exception, CommandFailed)
    assert outcome.exception.exit_code == 2
    assert not plans


@pytest.mark.parametrize("name", ["produce", "consume", "latency"])
def test_a_secured_node_is_measured_on_request(plans: list[records.Plan], name: str) -> None:
    code, _ = _invoke(name, "--secure")
    assert code == 0
    assert [plan.secure for plan in plans] == [True]


@pytest.mark.parametrize("foreign", [("--nodes", "3"), ("--bootstrap", "127.0.0.1:1")])
def test_only_a_new_node_can_be_secured(plans: list[records.Plan], foreign: tuple[str, ...]) -> None:
    outcome = _run("produce", "--secure", *foreign)
    assert isinstance(outcome.exception, CommandFailed)
    assert outcome.exception.exit_code == 2
    assert not plans
