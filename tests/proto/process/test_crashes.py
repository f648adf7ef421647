from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog_proto.process.crashes import CORE_LIMIT_BYTES

NODE = ("node", "--data", "data", "--port", "0", "--management-port", "0")
GATEWAY = ("gateway", "--bootstrap", "127.0.0.1:1", "--http-port", "0")


@pytest.mark.parametrize("command", [NODE, GATEWAY], ids=["node", "gateway"])
def test_server_that_crashes_leaves_its_stacks_and_no_core_file(tmp_path: Path, command: tuple[str, ...]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog_cli", *command],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["event"] == "ready"
            limits = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
            (cores,) = [line.split()[-3:-1] for line in limits if line.startswith("Max core file size")]
        finally:
            process.send_signal(signal.SIGABRT)
        _, told = process.communicate()
    assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in told
    assert "(most recent call first)" in told
    assert not list(tmp_path.glob("core*"))
    assert all(int(bound) <= CORE_LIMIT_BYTES for bound in cores)
