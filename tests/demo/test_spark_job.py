from __future__ import annotations

import asyncio
import sys

import pytest

from tidelog_demo.source import CarrierStats
from tidelog_demo.spark_job import SparkJobError, stats_by_carrier


def _pretend(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    real = asyncio.create_subprocess_exec

    async def pretended(*_: str, **how: int) -> asyncio.subprocess.Process:
        return await real(sys.executable, "-c", script, **how)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr(asyncio, "create_subprocess_exec", pretended)


async def test_the_last_line_is_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    line = '[{"carrier": "UA", "flights": 2, "mean_delay_minutes": 1.5}]'
    _pretend(monkeypatch, f"print('chatter'); print('''{line}''')")
    assert await stats_by_carrier("host:1", "flights") == [CarrierStats("UA", 2, 1.5)]


async def test_a_failed_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "raise SystemExit(3)")
    with pytest.raises(SparkJobError, match="code 3"):
        await stats_by_carrier("host:1", "flights")


async def test_a_silent_job_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, "")
    with pytest.raises(SparkJobError, match="no result"):
        await stats_by_carrier("host:1", "flights")


async def test_cancelling_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()
    real = asyncio.create_subprocess_exec

    async def pretended(*_: str, **how: int) -> asyncio.subprocess.Process:
        process = await real(sys.executable, "-c", "import time; time.sleep(60)", **how)  # type: ignore[arg-type] # passed on
        started.set_result(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", pretended)
    job = asyncio.create_task(stats_by_carrier("host:1", "flights"))
    process = await asyncio.shield(started)
    await asyncio.sleep(0)  # the job takes the process over from its start
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    assert process.returncode is not None
