"""The first moment of the command: an interrupt while it loads ends it without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

SLOW_MODULE = """
import sys
print("loading", flush=True)
sys.stdin.read()
"""


def begin(tmp_path: Path, *, ignoring: bool = False) -> subprocess.Popen[str]:
    """Start the command with a dependency that never finishes loading."""
    (tmp_path / "typer.py").write_text(SLOW_MODULE)
    shell = ["/bin/sh", "-c", 'trap \'\' INT; exec "$0" "$@"'] if ignoring else []
    process = subprocess.Popen(
        [*shell, sys.executable, "-m", "tidelog_cli", "--help"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "loading\n"
    return process


def test_an_interrupt_while_loading_leaves_no_traceback(tmp_path: Path) -> None:
    process = begin(tmp_path)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert stderr == ""


def test_ignored_interrupts_stay_ignored(tmp_path: Path) -> None:
    process = begin(tmp_path, ignoring=True)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate("", timeout=30)
    assert process.returncode == 1
    assert "typer" in stderr
