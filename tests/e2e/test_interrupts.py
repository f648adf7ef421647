"""Ctrl-C at any moment leaves no process of any command, and the command reports it without a traceback.

Processes started by a command, and their children, are found by a variable in their environment.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.machine]

STOP_TIMEOUT_S = 60
BEGUN_S = 0.3
"""Python itself has started by then; its own messages when it is interrupted earlier are not tested."""
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
            continue  # ended meanwhile, or another user's
    return found


def interrupted(arguments: list[str], after_s: float, processes: int, folder: Path) -> tuple[int, str]:
    """Run a command in its own process group, as a terminal does, and interrupt the group.

    It is interrupted `after_s` after the number of processes exists. Return the exit code and the standard error.
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
        while len(marked(mark)) < processes:
            assert process.poll() is None, "it ended by itself"
            time.sleep(0.05)  # no event to wait for
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(after_s)  # at a random time
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=STOP_TIMEOUT_S)
        assert psutil.wait_procs(marked(mark), timeout=STOP_TIMEOUT_S)[1] == []
    finally:
        for left in marked(mark):
            left.kill()
    return process.returncode, errors


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("arguments", "latest_s", "stages"),
    [
        (["tidelog_cli", "gateway", "--bootstrap", "127.0.0.1:1", "--http-port", "0"], 0.7, (1, 1, 1)),
        (["tidelog_cli", "up", "--data", "data", *FREE_PORTS, "--json"], 1.0, (1, 2, 3, 3)),
        # The command and three nodes; then a gateway, and the job that asks Spark.
        pytest.param(["tidelog_demo", "--data", "demo"], 3.0, (4, 6), marks=pytest.mark.spark),
    ],
    ids=["gateway", "up", "demo"],
)
def test_no_process_is_left(tmp_path: Path, arguments: list[str], latest_s: float, stages: tuple[int, ...]) -> None:
    """`stages` are the numbers of processes to wait for, so that start-up and service both have their rounds."""
    rng = random.Random(arguments[1])
    for processes in stages:
        after_s = BEGUN_S + rng.random() * latest_s
        code, errors = interrupted(arguments, after_s, processes, tmp_path)
        assert code in {0, 130, -signal.SIGINT}, f"{after_s:.2f} s after {processes} processes: {errors}"
        assert "Traceback" not in errors, f"{after_s:.2f} s after {processes} processes"
