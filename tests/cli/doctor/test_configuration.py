from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_broker.base.config import NodeSettings
from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.doctor.configuration import DEFAULTS, check_gateway_settings, check_node_settings, read_settings
from tidelog_gateway.settings import GatewaySettings


def test_defaults_are_those_of_the_processes() -> None:
    for key, value in DEFAULTS["node"].items():
        assert NodeSettings.model_fields[key].default == value
    for key, value in DEFAULTS["gateway"].items():
        assert GatewaySettings.model_fields[key].default == value


def test_variables_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tidelog.toml"
    path.write_text('[node]\nport = 7500\ndata = "/srv"\n')
    told = read_settings("node", path, {"TIDELOG_NODE_PORT": "7600", "TIDELOG_GATEWAY_HOST": "x"})
    assert (told["port"], told["data"], told["host"]) == ("7600", "/srv", "127.0.0.1")


def test_a_file_that_cannot_be_used_ends_the_command(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot read"):
        read_settings("node", tmp_path / "none")
    (tmp_path / "bad").write_text("= 1")
    with pytest.raises(CommandFailed, match="not valid TOML"):
        read_settings("node", tmp_path / "bad")


@pytest.mark.parametrize(
    ("told", "verdict", "word"),
    [
        ({"host": "0.0.0.0"}, "failure", "advertise_host"),
        ({"host": "10.0.0.1", "insecure": True}, "warning", "insecure"),
        ({"host": "10.0.0.1", "insecure": "true"}, "warning", "insecure"),
        ({"management_host": "10.0.0.1"}, "warning", "management_token_file"),
        ({"data": "/tmp/x"}, "warning", "/tmp/x"),
        ({"replication_factor_default": 1, "seeds": ["a:1"]}, "warning", "replication_factor_default"),
        ({"scrub_bytes_per_s": "0"}, "warning", "scrub_bytes_per_s"),
    ],
)
def test_likely_unintended_settings_are_reported(told: dict[str, object], verdict: str, word: str) -> None:
    (finding,) = check_node_settings(DEFAULTS["node"] | told)
    assert finding.verdict == verdict
    assert word in finding.found
    assert finding.remedy


def test_a_usual_configuration_is_fine() -> None:
    usual = {"data": "/var/lib/tidelog", "host": "0.0.0.0", "advertise_host": "log1", "insecure": False}
    (finding,) = check_node_settings(DEFAULTS["node"] | usual)
    assert finding.verdict == "ok"


def test_more_workers_than_processors_are_warned_of() -> None:
    assert [finding.verdict for finding in check_gateway_settings({"workers": "4"}, 2)] == ["warning"]
    for workers in ({}, {"workers": 2}, {"workers": "two"}):
        assert list(check_gateway_settings(workers, 2)) == []
