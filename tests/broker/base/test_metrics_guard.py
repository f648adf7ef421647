from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.broker.stand import settled

from tidelog_broker.base.config import NodeSettings
from tidelog_broker.base.metrics_guard import TOKENS_MAX, MetricsGuard, read_tokens
from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto.process.settings import SettingsError

TOKEN, OTHER = "a-token-of-sixteen", "another-token-of-sixteen"


def file_of(path: Path, text: str, mode: int = 0o600) -> Path:
    new = path / "new"
    new.touch()
    new.chmod(mode)
    new.write_text(text, encoding="utf-8")
    return new.replace(path / "metrics.token")


def status_of(guard: MetricsGuard, authorization: str = "") -> str:
    refused = guard.refusal(authorization)
    return "200" if refused is None else refused[0][:3]


@pytest.mark.parametrize(
    ("told", "status"),
    [
        ({}, "200"),
        ({"management_host": "::1"}, "200"),
        ({"management_host": "0.0.0.0"}, "403"),
        ({"management_host": "10.0.0.1"}, "403"),
        ({"management_host": "log1.example"}, "403"),
        ({"management_host": "0.0.0.0", "insecure": True}, "200"),
    ],
)
def test_metrics_without_tokens_are_open_on_loopback_only(told: dict[str, Any], status: str) -> None:
    guard = MetricsGuard.of(NodeSettings.model_validate({"data": "data"} | told))
    assert status_of(guard) == status
    assert status_of(guard, "Bearer anything-of-16-chars") == status


@pytest.mark.parametrize("told", [{}, {"management_host": "0.0.0.0"}, {"management_host": "0.0.0.0", "insecure": True}])
def test_metrics_with_tokens_need_one(told: dict[str, Any], tmp_path: Path) -> None:
    file = file_of(tmp_path, f"# of Prometheus\n{TOKEN}\n\n  {OTHER}\n")
    guard = MetricsGuard.of(NodeSettings.model_validate({"data": "data", "management_token_file": file} | told))
    for right in (f"Bearer {TOKEN}", f"bearer  {OTHER}"):
        assert status_of(guard, right) == "200"
    for wrong in (
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer é",
    ):
        assert status_of(guard, wrong) == "401", wrong


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("", 0o600, "got 0"),
        ("# nothing\n", 0o600, "got 0"),
        (f"{TOKEN}\n" * (TOKENS_MAX + 1), 0o600, f"got {TOKENS_MAX + 1}"),
        (f"{TOKEN}\nshort\n", 0o600, "line 2"),
        ("two words of 16 characters", 0o600, "no spaces"),
        ("é" * 20, 0o600, "ASCII"),
        ("x" * 20_000, 0o600, "has more than 16384 bytes"),
        (TOKEN, 0o604, "every user of this machine may read the tokens"),
    ],
)
def test_invalid_token_file_is_refused(tmp_path: Path, text: str, mode: int, why: str) -> None:
    with pytest.raises(SettingsError, match=why) as refused:
        MetricsGuard(file_of(tmp_path, text, mode), is_open=True)
    assert TOKEN not in str(refused.value)
    with pytest.raises(SettingsError, match="cannot read the tokens of management_token_file"):
        read_tokens(tmp_path / "none")


async def test_changed_token_file_is_reloaded_and_an_invalid_one_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog_broker.base import metrics_guard as module  # noqa: PLC0415

    monkeypatch.setattr(module, "LOOK_S", 0.01)
    workers = IoWorkers(1, name="secret")
    guard = MetricsGuard(file_of(tmp_path, TOKEN), is_open=False)
    following = asyncio.create_task(guard.follow(Offload(workers, asyncio.get_running_loop())))
    try:
        file_of(tmp_path, "short")
        await settled(lambda: "stays in use" in caplog.text, "nothing was logged")
        assert status_of(guard, f"Bearer {TOKEN}") == "200"
        file_of(tmp_path, f"{OTHER}\n{TOKEN}")
        await settled(lambda: status_of(guard, f"Bearer {OTHER}") == "200", "the new one does not count")
        file_of(tmp_path, OTHER)
        await settled(lambda: status_of(guard, f"Bearer {TOKEN}") == "401", "the old one counts")
        assert status_of(guard, f"Bearer {OTHER}") == "200"
        assert caplog.text.count("stays in use") == 1
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
        workers.close()
    await MetricsGuard(None, is_open=True).follow(Offload(workers, asyncio.get_running_loop()))
