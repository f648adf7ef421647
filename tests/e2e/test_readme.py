"""Every snippet of the README, run in its order against what the README starts, and compared with what it shows.

A `text` block shows the output of the block before it: each of its lines has to come, in order, `…` standing for
anything. Addresses are those of a stack on free ports. Two blocks are not run here: `make demo`, which has its own
test, and `make up`, whose command this module starts with its own ports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTED_ELSEWHERE = ("make demo\n", "make up\n")

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(300)]


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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Run what `make up` runs."""
    recipe = subprocess.run(["make", "-n", "up"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "tidelog up --data .up" in recipe
    data = tmp_path_factory.mktemp("readme")
    ports = ["--port", "0", "--management-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(data / ".up"), *ports, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline()) | {"folder": str(data)}
        finally:
            process.terminate()
            assert process.wait(60) == 0


def run(snippet: Snippet, stack: dict[str, str]) -> str:
    code = snippet.code.replace("127.0.0.1:7400", stack["bootstrap"])
    code = code.replace("127.0.0.1:8080", stack["http_url"].removeprefix("http://"))
    interpreter = ["bash", "-euo", "pipefail", "-c"] if snippet.language == "bash" else [sys.executable, "-c"]
    ended = subprocess.run(
        [*interpreter, code],
        cwd=stack["folder"],
        env=os.environ | {"TIDELOG_BOOTSTRAP": stack["bootstrap"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def test_the_readme_from_top_to_bottom(stack: dict[str, str]) -> None:
    """One test, because each step builds on the one before."""
    (Path(stack["folder"]) / ".venv").symlink_to(sys.prefix)
    todo = [snippet for snippet in snippets() if snippet.code not in STARTED_ELSEWHERE]
    assert len(todo) == len(snippets()) - len(STARTED_ELSEWHERE)
    assert {snippet.language for snippet in todo} == {"bash", "python"}
    for snippet in todo:
        output = run(snippet, stack)
        print(output)
        lines = iter(output.splitlines())
        for shown in snippet.shown.splitlines():
            pattern = shown.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
            assert any(fnmatchcase(line, pattern) for line in lines), f"{shown!r} is not in the output:\n{output}"


def test_the_demo_has_a_test_of_its_own() -> None:
    demo_tests = "".join(path.read_text() for path in (ROOT / "tests" / "demo").glob("test_*.py"))
    assert "tidelog_demo" in demo_tests
    assert any(snippet.code == "make demo\n" for snippet in snippets())
