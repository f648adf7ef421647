from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from tidelog_cli.base.failures import EXIT_FAILED, EXIT_OK
from tidelog_cli.doctor import command
from tidelog_cli.doctor.findings import Finding


@pytest.fixture(autouse=True)
def free_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at no port of the machine that runs the tests."""
    for name in ("NODE_PORT", "NODE_MANAGEMENT_PORT", "GATEWAY_HTTP_PORT"):
        monkeypatch.setenv(f"TIDELOG_{name}", "0")


def test_a_machine_with_its_node_is_checked(cli: Cli, node: str, tmp_path: Path) -> None:
    told = cli("doctor", "--data", tmp_path, "--json")
    assert told.code == EXIT_OK, told.out
    findings = json.loads(told.out)
    assert {finding["verdict"] for finding in findings} <= {"ok", "warning", "skipped"}
    (network,) = [finding for finding in findings if finding["check"].startswith("network to ")]
    assert node in network["found"]
    assert {"sync", "clock", "open files", "nodes"} <= {finding["check"] for finding in findings}
    shown = cli("doctor", "--data", tmp_path).out
    assert "0 failures" in shown


def test_a_failure_or_with_strict_a_warning_is_an_exit_code(cli: Cli, tmp_path: Path) -> None:
    away = cli("doctor", "--bootstrap", "127.0.0.1:1", "--json")
    assert away.code == EXIT_FAILED
    assert json.loads(away.out)[-1]["verdict"] == "failure"
    missing = tmp_path / "missing"
    assert cli("doctor", "--data", missing).code == EXIT_OK
    assert cli("doctor", "--data", missing, "--strict").code == EXIT_FAILED


def test_a_configuration_is_read(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "tidelog.toml"
    config.write_text(f'[node]\nhost = "0.0.0.0"\ndata = "{tmp_path}"\n')
    told = cli("doctor", "--config", config)
    assert told.code == EXIT_FAILED
    assert "set advertise_host" in told.out
    assert cli("doctor", "--config", tmp_path / "none").code == 2


def test_summary_uses_the_singular_for_one_failure(capsys: pytest.CaptureFixture[str]) -> None:
    command._print([Finding("disk", "failure", "full")])
    assert capsys.readouterr().out.endswith("1 failure, 0 warnings, 0 ok, 0 skipped\n")
