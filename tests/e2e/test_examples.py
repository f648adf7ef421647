"""Every example of the pages that have some, each run against a node, and compared with the shown output.

A `text` block shows the output of the block before it, as in the README (`test_readme.py`). An example with tests in
it is run by pytest, with the fixtures of the package. 127.0.0.1:7400 is the node of this module, port 9000 any.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import psutil
import pytest
from tests.e2e.test_readme import FENCE, Snippet
from tests.plugin.installed import run_pytest
from tests.test_docs import (
    GUIDES,
    HTTP_PAGE,
    PUBLISHING_PAGE,
    RUN_PAGES,
    SECURITY_PAGE,
    SPARK_PAGES,
    STREAMS_PAGE,
    WEBSOCKET_PAGE,
)

from tidelog import testing
from tidelog.testing.free_ports import free_ports

_OTHER_TESTS = (HTTP_PAGE, PUBLISHING_PAGE, SECURITY_PAGE, *SPARK_PAGES, STREAMS_PAGE, WEBSOCKET_PAGE)
_ELSEWHERE = {"README.md", *(page.name for page in _OTHER_TESTS), *GUIDES}
PAGES = [page for page in sorted(RUN_PAGES) if page.name not in _ELSEWHERE]
"""The others have tests of their own, see tests/test_docs.py."""

pytestmark = pytest.mark.e2e

EXAMPLE_S_MAX = 100
"""Ray takes 15 s to start its processes on a machine that does nothing else."""


def examples() -> list[tuple[str, Snippet]]:
    """Return the examples, each with a name: the page and the number of its block."""
    found: list[tuple[str, Snippet]] = []
    for page in PAGES:
        blocks = FENCE.findall(page.read_text())
        for number, (language, code) in enumerate(blocks):
            shown = blocks[number + 1][1] if blocks[number + 1 :] and blocks[number + 1][0] == "text" else ""
            if language in {"bash", "python"}:
                found.append((f"{page.stem}-{number}", Snippet(language, code, shown)))
    return found


@pytest.fixture(scope="module")
def node() -> Iterator[testing.LocalNode]:
    with testing.node() as node:
        yield node


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a directory for programs' user data, and for Ray's sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="tl-") as path:
        yield Path(path)


@pytest.mark.long
@pytest.mark.timeout(EXAMPLE_S_MAX + 20)
@pytest.mark.parametrize("example", [pytest.param(snippet, id=name) for name, snippet in examples()])
def test_an_example_does_what_its_page_shows(
    example: Snippet, node: testing.LocalNode, tmp_path: Path, home: Path
) -> None:
    code = example.code.replace("127.0.0.1:7400", node.bootstrap).replace("(9000,", f"({free_ports(1)[0]},")
    if "def test_" in code:
        (tmp_path / "test_example.py").write_text(code)
        ran = run_pytest(tmp_path)
        assert ran.returncode == 0, f"{code}\n{ran.stdout}\n{ran.stderr}"
        assert " passed" in ran.stdout
        return
    command = [sys.executable, "-W", "error", "-c", code]
    if "import ray" in code:  # it warns of settings of its own
        command[3:3] = ["-W", "ignore::DeprecationWarning"]
    if example.language == "bash":
        (tmp_path / "tidelog").write_text(f'#!/bin/sh\nexec {sys.executable} -m tidelog_cli "$@"\n')
        (tmp_path / "tidelog").chmod(0o755)
        command = ["bash", "-euc", code]
    environ = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "TIDELOG_BOOTSTRAP": node.bootstrap,
        "HOME": str(home),
        "RAY_TMPDIR": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
    }

    def run() -> str:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ, timeout=EXAMPLE_S_MAX
        )
        assert ended.returncode == 0, f"{code}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    output = run()
    left = [
        process for process in psutil.process_iter(["cmdline"]) if str(home) in " ".join(process.info["cmdline"] or [])
    ]
    print(output)
    assert psutil.wait_procs(left, timeout=20)[1] == [], "an example has left processes running"
    lines = iter(output.splitlines())
    for shown in example.shown.splitlines():
        pattern = shown.replace("[", "[[]").replace("?", "[?]").replace("*", "[*]").replace("…", "*")
        assert any(fnmatchcase(line, pattern) for line in lines), f"{shown!r} is not in the output:\n{output}"
    if "import ray" not in code:  # which takes 15 s
        run()  # again, where what it creates exists


def test_the_pages_have_examples() -> None:
    assert {name.rsplit("-", 1)[0] for name, _ in examples()} == {page.stem for page in PAGES}
