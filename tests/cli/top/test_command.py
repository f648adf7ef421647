from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time

from tests.cli.conftest import Cli

from tidelog_cli.base.failures import EXIT_USAGE


def test_figures_are_printed_as_json(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, stdin=b"a\nb\nc\n").code == 0
    assert cli("consume", topic, "--group", "top-readers", "--max", 1).code == 0
    told = cli("top", "--json", "--interval", "0.2")
    assert told.code == 0, told.err
    document = json.loads(told.out)
    (mine,) = [row for row in document["topics"] if row["topic"] == topic]
    assert (mine["records"], mine["records_per_s"], mine["partitions"]) == (3, 0.0, 2)
    (group,) = [row for row in document["groups"] if row["group"] == "top-readers"]
    assert group["lag"] == 2
    assert mine["largest_lag"] == 2
    (node,) = document["nodes"]
    assert node["state"] == "running"
    assert node["disk_free_bytes"] > 0


def test_without_a_terminal_it_says_what_to_do(cli: Cli) -> None:
    told = cli("top")
    assert told.code == EXIT_USAGE
    assert "tidelog top --json" in told.err


def test_it_runs_in_a_terminal_and_q_leaves(node: str) -> None:
    controller, terminal = pty.openpty()
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    command = [sys.executable, "-m", "tidelog_cli", "top", "--interval", "0.2"]
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environ) as process:
        os.close(terminal)
        shown, until_s = b"", time.monotonic() + 60
        while b"running" not in shown:
            assert time.monotonic() < until_s, shown[-2000:]
            shown += os.read(controller, 65536)
        os.write(controller, b"q")
        try:
            while os.read(controller, 65536):
                pass
        except OSError:  # every process has closed the terminal
            pass
        assert process.wait(30) == 0
    os.close(controller)
