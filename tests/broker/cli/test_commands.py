"""Errors of `tidelog node` at its start; start, service and stop are tested with real processes."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.cli import commands
from tidelog_broker.cli.commands import register
from tidelog_broker.node.node import Node
from tidelog_broker.storage.node.node_dir import open_node_dir


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    register(app)
    return app


def test_invalid_setting_is_named_as_a_usage_error(app: typer.Typer, tmp_path: Path) -> None:
    config = tmp_path / "tidelog.toml"
    config.write_text('[node]\ndata = "d"\nprot = 7400\n')
    result = CliRunner().invoke(app, ["node", "--config", str(config)])
    assert result.exit_code == 2
    assert "prot" in result.stderr
    assert "port" in result.stderr
    assert result.stdout == ""


def test_data_directory_is_required(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_NODE_DATA", raising=False)
    result = CliRunner().invoke(app, ["node"])
    assert result.exit_code == 2
    assert "node.data is required: set --data, the variable TIDELOG_NODE_DATA, or data in [node]" in result.stderr


def test_roles_and_weight_are_options(app: typer.Typer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    got: list[NodeSettings] = []

    async def serve(settings: NodeSettings, *, replaces: bool) -> int:
        assert not replaces
        got.append(settings)
        return 0

    monkeypatch.setattr(commands, "_serve", serve)
    told = ["node", "--data", str(tmp_path), "--seeds", "log1:7400"]
    for more in (["--role", "ingestion", "--weight", "250", "--advertise-host", "log4.example.org"], []):
        assert CliRunner().invoke(app, [*told, *more]).exit_code == 0
    assert [(one.roles, one.weight, one.advertise_host) for one in got] == [
        (["ingestion"], 250, "log4.example.org"),
        (["ingestion", "persistence"], 100, None),
    ]
    alone = CliRunner().invoke(app, ["node", "--data", str(tmp_path), "--role", "ingestion"])
    assert alone.exit_code == 2
    assert "cannot have only the role ingestion" in alone.stderr
    assert len(got) == 2


def test_unusable_directory_is_a_one_line_error(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    result = CliRunner().invoke(app, ["node", "--data", str(file)])
    assert result.exit_code == 1
    message = f"tidelog node: {file} is not a directory; give another path for the data directory"
    assert result.stderr.strip().splitlines()[-1] == message


def test_damaged_node_record_is_not_changed(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"format_version": 1}))
    result = CliRunner().invoke(app, ["node", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert json.loads((tmp_path / "node.json").read_text()) == {"format_version": 1}


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_lost_promises_are_a_one_line_error_with_a_remedy(app: typer.Typer, tmp_path: Path, how: str) -> None:
    with closing(open_node_dir(tmp_path)) as directory:
        fences = directory.fences
    if how == "missing":
        fences.unlink()
    else:
        fences.write_bytes(b"rot")
    result = CliRunner().invoke(app, ["node", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith(f"tidelog node: the data in {tmp_path} cannot be served: {fences} is {how}")


def settings_of(**told: object) -> NodeSettings:
    return NodeSettings.model_validate(told)


def test_wildcard_address_logs_the_advertised_host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    commands._warn_of_loopback(settings_of(data=tmp_path))
    commands._warn_of_loopback(settings_of(data=tmp_path, host="::", advertise_host="log1.example.org"))
    assert not caplog.records
    commands._warn_of_loopback(settings_of(data=tmp_path, host="0.0.0.0"))
    assert "TIDELOG_NODE_ADVERTISE_HOST" in caplog.text


async def test_stop_reason_is_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = Node.start

    async def start_and_be_removed(self: Node) -> None:
        await start(self)
        self.lifecycle.give_up("the cluster has removed 'log1'")

    monkeypatch.setattr(Node, "start", start_and_be_removed)
    tuned: list[bool] = []
    monkeypatch.setattr(commands, "tune_server", lambda: tuned.append(True))
    settings = settings_of(data=tmp_path / "d", port=0, management_port=0)
    assert await commands._serve(settings, replaces=False) == os.EX_CONFIG
    assert capsys.readouterr().err.splitlines()[-1] == "tidelog node: the cluster has removed 'log1'"
    assert tuned == [True]
