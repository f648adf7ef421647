from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.up import child_processes, supervised_child

READY = 'print(\'starting\'); print(\'{"event": "ready", "port": 5}\', flush=True)'


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `running` run its argument as a Python program instead of a command."""
    real = asyncio.create_subprocess_exec

    async def create(*command: str, **options: Any) -> asyncio.subprocess.Process:
        assert list(command[:5]) == supervised_child.command("tidelog_cli", [])
        return await real(sys.executable, "-c", *command[5:], **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)


@pytest.mark.usefixtures("script")
async def test_a_child_is_ready_and_stopped_on_the_way_out() -> None:
    async with child_processes.running("child", [f"{READY}; import time; time.sleep(600)"]) as started:
        assert started.ready["port"] == 5
        os.kill(started.process.pid, 0)
    assert started.process.returncode == -15


@pytest.mark.usefixtures("script")
async def test_a_child_that_does_not_start_is_an_error() -> None:
    with pytest.raises(CommandFailed, match=r"the child did not start .* code 3\); see its output above"):
        async with child_processes.running("child", ["raise SystemExit(3)"]):
            raise AssertionError


@pytest.mark.usefixtures("script")
async def test_the_log_of_a_child_is_named(tmp_path: Path) -> None:
    path = tmp_path / "child.log"
    with path.open("wb") as log, pytest.raises(CommandFailed, match=f"see {path}"):
        async with child_processes.running("child", ["import sys; sys.exit('why')"], log=log):
            raise AssertionError
    assert path.read_bytes() == b"why\n"


@pytest.mark.usefixtures("script")
async def test_silent_child_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "READY_TIMEOUT_S", 0.2)
    with pytest.raises(CommandFailed, match="not ready after"):
        async with child_processes.running("child", ["import time; time.sleep(600)"]):
            raise AssertionError


@pytest.mark.usefixtures("script")
async def test_unexpected_exit_of_a_child_is_reported(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    async with child_processes.running("child", [f"{READY}; print('last words'); raise SystemExit(7)"]) as started:
        assert "exited unexpectedly with code 7" in str(await started.ended())


@pytest.mark.usefixtures("script")
async def test_a_child_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "STOP_TIMEOUT_S", 0.2)
    deaf = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(600)"
    async with child_processes.running("child", [deaf]) as started:
        pass
    assert started.process.returncode == -9
