from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.test_docs import commands

from tidelog_cli.base.extras import MODULES
from tidelog_cli.plugins import PARTS

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]

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
    assert "pip install 'tidelog[up]'" in ended.stderr
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


def modules(requirements: list[str]) -> set[str]:
    """Return the modules of requirements; those of this package's extras are resolved."""
    found: set[str] = set()
    for requirement in requirements:
        if own := re.fullmatch(r"tidelog\[(.+)\]", requirement):
            found |= {module for extra in own[1].split(",") for module in modules(EXTRAS[extra])}
        else:
            name = re.split(r"[\[><=;]", requirement)[0].strip()
            found.add(MODULE_OF.get(name, name.replace("-", "_")))
    return found


def test_the_table_matches_the_extras_of_the_package() -> None:
    base = modules(PROJECT["dependencies"])
    for extra, listed in MODULES.items():
        assert set(listed) == modules(EXTRAS[extra]) - base, extra


def test_the_extra_all_has_the_packages_of_every_other_one_that_users_need() -> None:
    for_users = EXTRAS.keys() - {"all", "demo", "dev", "docs", "release"}
    assert modules(EXTRAS["all"]) == {module for extra in for_users for module in modules(EXTRAS[extra])}


def test_the_page_lists_every_extra_and_no_other() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    table = page.partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == EXTRAS.keys() - {"demo", "dev", "docs", "release"}


def test_the_page_lists_the_extras_of_each_command() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    table = page.partition("## Which command needs which extra")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", table, re.MULTILINE)
    needed = {command: set(re.findall(r"`(\w+)`", extras)) for row, extras in rows for command in row.split("`")[1::2]}
    assert needed.keys() == commands().keys()
    for part in PARTS.values():
        for command, _ in part.commands:
            assert needed[command] == set(part.extras)
    assert (needed["up"], needed["top"]) == ({"up", "rocksdb"}, {"top"})
