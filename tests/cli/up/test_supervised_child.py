"""Children end with their parent, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tidelog_cli.up import supervised_child

PARENT = """
import subprocess, sys, time
from tidelog_cli.up import supervised_child
started = subprocess.Popen(supervised_child.command(sys.argv[1], sys.argv[2:]))
print(started.pid, flush=True)
time.sleep(600)
"""


def test_the_module_gets_its_arguments_and_its_exit_code_counts(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(7)\n")
    ended = subprocess.run(
        supervised_child.command("program", ["a", "--b"]),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (7, "__main__ ['a', '--b']\n")


def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    """The child gets SIGTERM, so that it can stop gracefully."""
    (tmp_path / "program.py").write_text(
        "import os, signal, time\n"
        "def stop(*_):\n"
        "    os.write(1, b'stopped in order')\n"
        "    raise SystemExit\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, "program"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        lines = {parent.stdout.readline(), parent.stdout.readline()}
        assert "up\n" in lines
        parent.kill()
        assert parent.stdout.read() == "stopped in order"


def test_a_parent_that_is_gone_before_leaves_nothing_running() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tidelog_cli.up.supervised_child", "1", "tidelog_cli", "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (128 + signal.SIGTERM, "")


@pytest.mark.e2e
def test_a_killed_stack_leaves_no_process(tmp_path: Path) -> None:
    ports = ["--port", "0", "--management-port", "0", "--http-port", "0"]
    command = [sys.executable, "-m", "tidelog_cli", "up", "--data", str(tmp_path / "data"), *ports, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert len(children) == 2
    assert psutil.wait_procs(children, timeout=30)[1] == []
    assert json.loads((tmp_path / "data" / "node.json").read_text())["stopped_cleanly"]
