"""What `tidelog node` says when it does not start; how it starts, serves and stops is tested with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tidelog_broker.commands import register


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    register(app)
    return app


def test_a_mistake_in_the_settings_is_named_and_is_a_mistake_of_use(app: typer.Typer, tmp_path: Path) -> None:
    config = tmp_path / "tidelog.toml"
    config.write_text('[node]\ndata = "d"\nprot = 7400\n')
    result = CliRunner().invoke(app, ["node", "--config", str(config)])
    assert result.exit_code == 2
    assert "prot" in result.stderr
    assert "port" in result.stderr
    assert result.stdout == ""


def test_a_node_needs_a_directory(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDELOG_NODE_DATA", raising=False)
    result = CliRunner().invoke(app, ["node"])
    assert result.exit_code == 2
    assert "node.data is needed: give --data, the variable TIDELOG_NODE_DATA, or data in [node]" in result.stderr


def test_a_directory_that_cannot_be_used_is_one_line(app: typer.Typer, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    result = CliRunner().invoke(app, ["node", "--data", str(file)])
    assert result.exit_code == 1
    assert result.stderr.strip().splitlines()[-1] == f"tidelog node: {file} is not a directory"


def test_a_damaged_record_of_the_node_is_left_as_it_is(app: typer.Typer, tmp_path: Path) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"format_version": 1}))
    result = CliRunner().invoke(app, ["node", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "damaged" in result.stderr
    assert json.loads((tmp_path / "node.json").read_text()) == {"format_version": 1}
