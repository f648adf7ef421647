from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import psutil
import pytest

from tidelog_demo.source import CarrierStats
from tidelog_demo.spark_job import SparkJobError, stats_by_carrier


def _pretend(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    real = asyncio.create_subprocess_exec

    async def pretended(*_: str, **how: int) -> asyncio.subprocess.Process:
        return await real(sys.executable, "-c", script, **how)  # type: ignore[arg-type] # forwarded unchanged

    monkeypatch.setattr(asyncio, "create_subprocess_exec", pretended)


async def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = '[{"carrier": "UA", "flights": 2, "mean_delay_minutes": 1.5}]'
    _pretend(monkeypatch, f"print('chatter'); print('''{line}''')")
    assert await stats_by_carrier("host:1", "flights", log=tmp_path / "log") == [CarrierStats("UA", 2, 1.5)]


@pytest.mark.parametrize("was_there", [False, True])
async def test_only_the_owner_can_read_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, was_there: bool
) -> None:
    log = tmp_path / "log"
    if was_there:
        log.write_text("of the last run")
        log.chmod(0o644)
    _pretend(monkeypatch, "import sys; print('to the log', file=sys.stderr); print('[]')")
    assert await stats_by_carrier("host:1", "flights", log=log) == []
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert log.read_text() == "to the log\n"


async def test_a_failed_job_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pretend(monkeypatch, "import sys; print('much'); print('why', file=sys.stderr); raise SystemExit(3)")
    with pytest.raises(SparkJobError, match=r"code 3: why \(see .*log\)"):
        await stats_by_carrier("host:1", "flights", log=tmp_path / "log")


async def test_a_silent_job_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _pretend(monkeypatch, "")
    with pytest.raises(SparkJobError, match="no result"):
        await stats_by_carrier("host:1", "flights", log=tmp_path / "log")


WITH_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "60"])
with open({fifo!r}, "w") as told:
    told.write(str(child.pid))
child.wait()
"""


async def test_cancelling_ends_the_process_and_its_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    _pretend(monkeypatch, WITH_A_CHILD.format(fifo=str(fifo)))
    # Some releases of Python wait for a process until its child has closed the pipe, which is forever here.
    monkeypatch.setattr("tidelog_demo.spark_job._STOP_TIMEOUT_S", 1.0)
    job = asyncio.create_task(stats_by_carrier("host:1", "flights", log=tmp_path / "log"))
    child = psutil.Process(int(await asyncio.to_thread(fifo.read_text)))
    process = child.parent()
    assert process is not None
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert psutil.wait_procs([process, child], timeout=10)[1] == []
