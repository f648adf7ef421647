from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest import commands, engine_commands
from tidelog_loadtest.engine_commands import parsed_counts
from tidelog_loadtest.measure.progress import Tell
from tidelog_loadtest.node.engine_figures import STORAGES, EnginesPlan, EnginesResult


def app() -> typer.Typer:
    made = typer.Typer()
    commands.register(made)
    return made


def test_the_command_passes_its_options_to_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[EnginesPlan]()

    async def measured(plan: EnginesPlan, tell: Tell) -> EnginesResult:
        asked.append(plan)
        tell("created", 1)
        return EnginesResult(plan)

    monkeypatch.setattr(engine_commands, "compare_engines", measured)
    arguments = ["--partitions", "30,1", "--partitions", "7", "--storage", "shared", "--storage", "memory", "--json"]
    done = CliRunner().invoke(app(), ["bench", "engines", *arguments])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["benchmark"] == "engines"
    assert (asked[0].counts, asked[0].storages) == ((1, 7, 30), ("shared", "memory"))
    done = CliRunner().invoke(app(), ["bench", "engines", "--rocksdb-preset", "normal", "--pending", "5"])
    assert done.exit_code == 0, done.output
    assert (asked[1].counts, asked[1].storages) == ((1, 1_000, 10_000), tuple(STORAGES))
    assert (asked[1].rocksdb_preset, asked[1].window) == ("normal", 5)


@pytest.mark.parametrize("text", ["", "0", "x", "1,,2", "-1", "100001", "1.5"])
def test_a_number_of_partitions_that_no_topic_can_have_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="--partitions: numbers from 1 to 100000"):
        parsed_counts([text])


def test_missing_rocksdb_is_reported_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_commands, "missing_from", lambda _: "not installed here; run: pip install it")
    refused = CliRunner().invoke(app(), ["bench", "engines"])
    assert "pip install it; or measure the others: --storage segment --storage shared" in str(refused.exception)
