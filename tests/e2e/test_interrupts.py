"""Ctrl-C at any moment leaves no process, whichever command it was, and the command says so without a traceback.

What a command starts, and what that starts, is found by a variable of its environment.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e

STOP_TIMEOUT_S = 60
BEGUN_S = 0.3
"""Python itself has begun by then; what it prints when it is interrupted before is not ours."""
MARK = "TIDELOG_TEST_MARK"
FREE_PORTS = ("--port", "0", "--management-port", "0", "--http-port", "0")


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes, this one's children or not, that were started with `mark` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:
            continue  # ended meanwhile, or somebody else's
    return found


def interrupted(arguments: list[str], after_s: float, folder: Path) -> tuple[int, str, int]:
    """Run a command in a group of its own, as a terminal does, and interrupt the group after a while.

    Return its exit code, what it said on stderr, and how many processes there were.
    """
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | {MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(after_s)  # the moment is what is random here
        count = len(marked(mark))
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=STOP_TIMEOUT_S)
        assert psutil.wait_procs(marked(mark), timeout=5)[1] == []
    finally:
        for left in marked(mark):
            left.kill()
    return process.returncode, errors, count


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("arguments", "latest_s", "rounds"),
    [
        (["tidelog_cli", "gateway", "--bootstrap", "127.0.0.1:1", "--http-port", "0"], 2.0, 4),
        (["tidelog_cli", "up", "--data", "data", *FREE_PORTS, "--json"], 4.0, 5),
        pytest.param(["tidelog_demo", "--data", "demo"], 16.0, 2, marks=pytest.mark.spark),
    ],
    ids=["gateway", "up", "demo"],
)
def test_nothing_is_left_behind(tmp_path: Path, arguments: list[str], latest_s: float, rounds: int) -> None:
    rng = random.Random(arguments[1])
    most = 0
    for number in range(rounds):
        # One moment of each part of the time, so that start-up and service both have theirs.
        after_s = BEGUN_S + (number + rng.random()) * latest_s / rounds
        code, errors, count = interrupted(arguments, after_s, tmp_path)
        assert code in {0, 130, -signal.SIGINT}, f"after {after_s:.2f} s: {errors}"
        assert "Traceback" not in errors, f"after {after_s:.2f} s"
        most = max(most, count)
    assert most >= (1 if "gateway" in arguments else 3), "it never got as far as to have children"
