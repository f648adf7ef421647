"""Every Python example of the guides, run in order against one real node, and compared with the shown output.

A `text` block shows the output of the block before it: each of its lines has to come, in order; `…` matches
anything.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ("groups.md", "guarantees.md", "from-kafka.md", "deduplication.md")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.e2e


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "tidelog_cli", "node", "--data", str(tmp_path / "data")]
    command += ["--port", "0", "--management-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        process.terminate()
        assert process.wait(30) == 0


def check(shown: str, output: str) -> None:
    lines = iter(output.splitlines())
    for line in shown.splitlines():
        pattern = line.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
        assert any(fnmatchcase(each, pattern) for each in lines), f"{line!r} is not in the output:\n{output}"


def run(code: str, address: str) -> str:
    program = code.replace("127.0.0.1:7400", address)
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.returncode == 0, f"{program}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.mark.long
@pytest.mark.parametrize("page", GUIDES)
def test_the_examples_of_a_guide_work(page: str, address: str) -> None:
    blocks = FENCE.findall((DOCS / page).read_text())
    assert "python" in {language for language, _ in blocks}
    output = ""
    for language, code in blocks:
        if language == "text":
            check(code, output)
        else:
            assert language == "python"
            output = run(code, address)
    for language, code in blocks:  # again, where what they create exists
        if language == "python":
            run(code, address)
