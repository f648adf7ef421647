from __future__ import annotations

import asyncio

import pytest

from tidelog_broker.base.tasks import Tasks


async def test_failed_task_is_logged_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    async def fail() -> None:
        raise KeyError("lost")

    task = tasks.spawn(fail(), "looking for it")
    assert tasks.named("looking for it") == [task]
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert "looking for it failed" in caplog.text
    assert tasks.named("looking for it") == []


async def test_cancel_ends_all_tasks_silently(caplog: pytest.LogCaptureFixture) -> None:
    tasks, ended = Tasks(), list[int]()

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    running = [tasks.spawn(wait(number), "waiting") for number in range(3)]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await tasks.cancel()
    assert sorted(ended) == [0, 1, 2]
    assert all(task.cancelled() for task in running)
    assert caplog.text == ""
