from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidelog_cli.main import build_app
from tidelog_loadtest.gateway.live_commands import PROBES
from tidelog_loadtest.gateway.live_delivery import LivePlan, Surface, measure_live


@pytest.mark.parametrize("surface", ["websocket", "sse"])
async def test_each_frame_reaches_each_socket_of_both_sides(tmp_path: Path, surface: Surface) -> None:
    plan = LivePlan(sockets=3, rate=50, seconds=0.4, rounds=1, batch_records=2, partitions=2, surface=surface)
    result = await measure_live(plan, tmp_path)
    assert (result.sockets, result.frames, result.surface) == (3, 20, surface)
    assert result.frame_bytes > 200
    assert result.gateway_us >= 0
    assert {probe.name for probe in result.probes} == set(PROBES)
    assert all(probe.us >= 0 and probe.ratio >= 0 for probe in result.probes)


def test_the_command_prints_the_measurement() -> None:
    arguments = ["bench", "live", "--sockets", "2", "--rate", "50", "--seconds", "0.5", "--rounds", "1", "--json"]
    answer = CliRunner().invoke(build_app(), arguments)
    assert answer.exit_code == 0, answer.output
    documents: list[dict[str, Any]] = json.loads(answer.stdout)
    assert [document["sockets"] for document in documents] == [2]
