from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tidelog_cli.base.extras import MODULES

ROOT = Path(__file__).parents[3]

BLOCKER = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Blocker())
"""
MODULE_OF = {"pyjwt": "jwt", "websocket-client": "websocket"}


def run(tmp_path: Path, blocked: set[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python in which some modules are not installed; its children have none of them either."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(names=blocked))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    return subprocess.run(
        [sys.executable, *command],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_up_names_the_extra_that_is_missing_before_it_starts_anything(tmp_path: Path) -> None:
    ended = run(tmp_path, {"uvicorn", "fastapi"}, "-m", "tidelog_cli", "up", "--data", "data", "--port", "0")
    assert ended.returncode == 1
    assert "no module 'fastapi', 'uvicorn'" in ended.stderr
    assert "pip install 'tidelog[broker,gateway]'" in ended.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("blocked", "command", "extra"),
    [
        ("uvicorn", "gateway", "gateway"),
        ("websockets", "gateway", "gateway"),
        ("fastapi_offline", "gateway", "gateway"),
        ("uvloop", "node", "broker"),
        ("jwt", "node", "broker"),
        ("cryptography", "node", "broker"),
        ("prometheus_client", "log", "broker"),
        ("uvloop", "bench", "loadtest,broker"),
    ],
)
def test_a_command_names_the_extra_that_is_missing(tmp_path: Path, blocked: str, command: str, extra: str) -> None:
    ended = run(tmp_path, {blocked}, "-m", "tidelog_cli", command)
    assert ended.returncode == 1
    assert f"pip install 'tidelog[{extra}]'" in ended.stderr
    assert f"no module '{blocked}'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("blocked", ["pyspark", "py4j"])
def test_the_spark_connector_names_its_extra(tmp_path: Path, blocked: str) -> None:
    ended = run(tmp_path, {blocked}, "-c", "import pyspark_tidelog")
    assert "pip install 'tidelog[spark]'" in ended.stderr.splitlines()[-1]


def test_the_table_matches_the_extras_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def modules(requirements: list[str]) -> set[str]:
        names = {re.split(r"[\[><=;]", requirement)[0].strip() for requirement in requirements}
        return {MODULE_OF.get(name, name.replace("-", "_")) for name in names}

    base = modules(project["dependencies"])
    for extra, listed in MODULES.items():
        assert set(listed) == modules(project["optional-dependencies"][extra]) - base, extra
