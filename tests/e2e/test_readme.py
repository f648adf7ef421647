"""Every snippet of the README, run in order against the stack that the README starts, and compared with its output.

A `text` block shows the output of the block before it: each of its lines has to come, in order; `…` matches
anything. Addresses are those of a stack on free ports. `make demo` is not run here, it has its own test; the blocks
that start something are started by this module with its own ports, each after the previous one has ended.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEMO = "make demo\n"
UP = "make up\n"
THREE = "127.0.0.1:7400,127.0.0.1:7410,127.0.0.1:7420"
CLUSTER = ". .venv/bin/activate\ntidelog up --nodes 3\n"

STATUS = ". .venv/bin/activate\ntidelog cluster status\n"

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A block to run and the output that the README shows for it."""

    language: str
    code: str
    shown: str


def snippets() -> list[Snippet]:
    found: list[Snippet] = []
    for language, code in FENCE.findall((ROOT / "README.md").read_text()):
        if language == "text":
            found[-1] = Snippet(found[-1].language, found[-1].code, code)
        else:
            found.append(Snippet(language, code, ""))
    return found


@contextmanager
def stack(folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """Run `tidelog up` on free ports until the block is left."""
    ports = ["--port", "0", "--management-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "tidelog_cli", "up", *options, *ports, "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline()) | {"folder": str(folder)}
        finally:
            process.terminate()
            assert process.wait(60) == 0


def run(snippet: Snippet, stack: dict[str, str]) -> str:
    code = snippet.code.replace(THREE, stack["bootstrap"]).replace("127.0.0.1:7400", stack["bootstrap"])
    code = code.replace("127.0.0.1:8080", stack["http_url"].removeprefix("http://"))
    interpreter = ["bash", "-euo", "pipefail", "-c"] if snippet.language == "bash" else [sys.executable, "-c"]
    ended = subprocess.run(
        [*interpreter, code],
        cwd=stack["folder"],
        env=os.environ | {"TIDELOG_BOOTSTRAP": stack["bootstrap"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def check(snippet: Snippet, stack: dict[str, str]) -> None:
    output = run(snippet, stack)
    print(output)
    lines = iter(output.splitlines())
    for shown in snippet.shown.splitlines():
        pattern = shown.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
        assert any(fnmatchcase(line, pattern) for line in lines), f"{shown!r} is not in the output:\n{output}"


@pytest.mark.long
def test_the_readme_from_top_to_bottom(tmp_path: Path) -> None:
    """One test, because each step builds on the one before."""
    recipe = subprocess.run(["make", "-n", "up"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tidelog up --data .up" in recipe
    (tmp_path / ".venv").symlink_to(sys.prefix)
    todo = snippets()
    assert [snippet.code for snippet in todo[:2]] == [DEMO, UP]
    codes = [snippet.code for snippet in todo]
    assert codes[-1] == CLUSTER
    assert {snippet.language for snippet in todo} == {"bash", "python"}
    with stack(tmp_path, "--data", ".up") as single:
        for snippet in todo[2:-1]:
            check(snippet, single)
        for snippet in todo[2:-1]:  # again, where what it creates exists
            if "spark" not in snippet.code:
                run(snippet, single)
    with stack(tmp_path, "--nodes", "3") as cluster:
        check(Snippet("bash", STATUS, " node1 …running…\n node2 …running…\n node3 …running…\n"), cluster)


def test_the_demo_has_a_test_of_its_own() -> None:
    demo_tests = "".join(path.read_text() for path in (ROOT / "tests" / "demo").glob("test_*.py"))
    assert "tidelog_demo" in demo_tests
    assert any(snippet.code == DEMO for snippet in snippets())


def test_the_readme_fits_three_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
