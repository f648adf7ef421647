"""The shipped systemd units: systemd accepts them, they are hardened, and their commands and exit codes exist.

Tests that need `systemd-analyze` run where it is installed; no unit is started.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog_broker.base.config import NodeSettings
from tidelog_cli.admin.deploy import FOLDER
from tidelog_cli.base.failures import EXIT_USAGE
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.process.settings import load_settings

UNITS = ("tidelog-node.service", "tidelog-gateway.service")
EXPOSURE_MAX = 20
"""Maximum of systemd's exposure score, which is up to 100."""


def told(unit: str, key: str) -> list[str]:
    """Return the values of a key of a unit."""
    return re.findall(rf"^{key}=(.*)$", (FOLDER / unit).read_text(), re.MULTILINE)


@pytest.fixture(params=UNITS)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit as it is installed here: with a command and a user of this machine."""
    text = (FOLDER / request.param).read_text()
    command = Path(sys.executable).with_name("tidelog")
    text = text.replace("/opt/tidelog/bin/tidelog", str(command)).replace("=tidelog\n", "=daemon\n", 2)
    path = tmp_path / str(request.param)
    path.write_text(text)
    return path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(installed: Path) -> None:
    checked = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_the_unit_may_do_little_beyond_its_work(installed: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(installed)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_runs_its_command_with_the_configuration_that_is_shipped(unit: str) -> None:
    (command,) = told(unit, "ExecStart")
    program, what, option, path = command.split()
    assert (Path(program).name, unit) == ("tidelog", f"tidelog-{what}.service")
    assert (option, Path(path).name) == ("--config", "tidelog.toml")
    assert str(EXIT_USAGE) in told(unit, "RestartPreventExitStatus")[0].split()


def test_the_configuration_is_one_that_both_take() -> None:
    node = load_settings(NodeSettings, "node", FOLDER / "tidelog.toml", environ={})
    gateway = load_settings(GatewaySettings, "gateway", FOLDER / "tidelog.toml", environ={})
    assert str(node.data) == f"/var/lib/{told(UNITS[0], 'StateDirectory')[0]}"
    assert gateway.bootstrap == [f"{node.host}:{node.port}"]


def test_a_node_has_time_to_stop() -> None:
    (stop_s,) = told(UNITS[0], "TimeoutStopSec")
    assert int(stop_s) * 1000 >= 2 * NodeSettings.model_fields["stop_timeout_ms"].default
    (stop_s,) = told(UNITS[1], "TimeoutStopSec")
    assert int(stop_s) >= 2 * GatewaySettings.model_fields["stop_timeout_s"].default
