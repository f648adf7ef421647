"""Commands that end gracefully are interrupted again and again until their process has ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.test_crash import ready, start

pytestmark = pytest.mark.e2e

END_TIMEOUT_S = 60
INTERVALS_S = (0.002, 0.02)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a node with a topic."""
    node = start(tmp_path_factory.mktemp("node") / "data")
    address = f"127.0.0.1:{ready(node)['port']}"
    try:
        command = [sys.executable, "-m", "tidelog_cli", "topic", "create", "t", "--bootstrap", address]
        subprocess.run(command, check=True, capture_output=True, timeout=END_TIMEOUT_S)
        yield address
    finally:
        node.terminate()
        node.communicate(timeout=END_TIMEOUT_S)


def interrupted_until_the_end(process: subprocess.Popen[str], interval_s: float) -> tuple[int, str]:
    """Send SIGINT until the process has ended; return its exit code and errors."""
    until = time.monotonic() + END_TIMEOUT_S
    while process.poll() is None:
        assert time.monotonic() < until, "the command does not end"
        process.send_signal(signal.SIGINT)
        time.sleep(interval_s)
    _, errors = process.communicate(timeout=END_TIMEOUT_S)
    return process.returncode, errors


@pytest.mark.parametrize("interval_s", INTERVALS_S)
@pytest.mark.parametrize("command", ["node", "gateway", "gateway --workers 2", "up"])
def test_a_server_that_is_interrupted_until_it_has_ended_reports_success(
    command: str, interval_s: float, bootstrap: str, tmp_path: Path
) -> None:
    name, *more = command.split()
    options = {
        "node": ["--data", str(tmp_path / "data"), "--port", "0", "--management-port", "0"],
        "gateway": ["--bootstrap", bootstrap, "--http-port", "0"],
        "up": [
            "--data",
            str(tmp_path / "up"),
            *("--port", "0", "--management-port", "0", "--http-port", "0", "--json"),
        ],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tidelog_cli", name, *options[name], *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline(), "the command did not start"
    code, errors = interrupted_until_the_end(process, interval_s)
    assert code == 0, errors
    if name != "gateway":  # A gateway stops at once at the second interrupt, and uvicorn logs where it was.
        assert "Traceback" not in errors


@pytest.mark.parametrize("interval_s", INTERVALS_S)
def test_a_reader_that_is_interrupted_until_it_has_ended_prints_no_traceback(interval_s: float, bootstrap: str) -> None:
    publish = [sys.executable, "-m", "tidelog_cli", "produce", "t", "--bootstrap", bootstrap]
    subprocess.run(publish, check=True, input="first\n", text=True, capture_output=True, timeout=END_TIMEOUT_S)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tidelog_cli",
            "consume",
            "t",
            "--follow",
            "--from",
            "earliest",
            "--bootstrap",
            bootstrap,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert "first" in process.stdout.readline()
    code, errors = interrupted_until_the_end(process, interval_s)
    assert code in {0, 130, -signal.SIGINT}, errors
    assert "Traceback" not in errors
