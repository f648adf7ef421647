from __future__ import annotations

import asyncio
import logging

import pytest

from tidelog_broker.replication import takeover_log
from tidelog_broker.replication.takeover_log import NAMED_MAX, TakeoverLog


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, takeover_log.log.name)
    return caplog


async def test_few_epochs_are_logged_separately(logged: pytest.LogCaptureFixture) -> None:
    epochs = TakeoverLog()
    for index in range(NAMED_MAX):
        epochs.add(f"t/{index}", 3, 70 + index)
    assert logged.messages == []
    epochs.log_collected()
    assert logged.messages == [
        f"t/{index}: this node owns epoch 3, which begins at offset {70 + index}" for index in range(NAMED_MAX)
    ]
    epochs.log_collected()
    assert len(logged.messages) == NAMED_MAX


async def test_many_epochs_are_logged_in_one_line(logged: pytest.LogCaptureFixture) -> None:
    epochs = TakeoverLog()
    for index in range(350):
        epochs.add(f"t/{index}", 3, 0)
    epochs.log_collected()
    (line,) = logged.messages
    assert line.startswith("this node has begun to own 350 partitions within ")
    assert line.endswith("s: t/0, t/1, t/2, t/3, t/4, ...")


async def test_log_is_written_after_a_delay(logged: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover_log, "MOMENT_S", 0.0)
    epochs = TakeoverLog()
    told = asyncio.Event()
    monkeypatch.setattr(takeover_log.log, "info", lambda *_: told.set())
    epochs.add("t/0", 1, 0)
    async with asyncio.timeout(20):
        await told.wait()
