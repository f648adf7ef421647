"""A tied child ends, and its directory goes, with the pipe that its parent holds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
print(__name__, sys.argv[1:], flush=True)
if "--stay" in sys.argv:
    time.sleep(600)
sys.exit(7)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    directory = tmp_path / "data -x"
    directory.mkdir()
    (directory / "file").write_text("data")
    return directory


def tied(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog_cli.up.temporary_child", directory, "program", *arguments],
        env=os.environ | {"PYTHONPATH": f"{directory.parent}:{os.environ.get('PYTHONPATH', '')}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_the_module_gets_its_arguments_and_its_exit_code_counts(directory: Path) -> None:
    with tied(directory, "a", "--b") as child:
        assert child.stdout is not None
        assert child.stdout.read() == "__main__ ['a', '--b']\n"
        assert child.wait(30) == 7
    assert (directory / "file").exists(), "a running parent deletes the directory itself"


def test_the_end_of_the_pipe_ends_the_child_and_removes_its_directory(directory: Path) -> None:
    with tied(directory, "--stay") as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "__main__ ['--stay']\n"
        child.stdin.write("input is ignored\n")
        child.stdin.flush()
        assert directory.exists()
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(30) == 0, "`rm` has ended well"
    assert not directory.exists()
    assert (directory.parent / "program.py").exists()
