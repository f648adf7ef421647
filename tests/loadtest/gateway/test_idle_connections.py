from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidelog_cli.main import build_app
from tidelog_loadtest.gateway.idle_connections import measure_idle
from tidelog_loadtest.gateway.live_delivery import Surface

PER_CONNECTION_BYTES_MAX = {"websocket": 80 * 1024, "sse": 80 * 1024}
"""10,000 of them then fit into 1 GiB, with memory left for the rest."""


@pytest.mark.parametrize("surface", ["websocket", "sse"])
async def test_an_idle_connection_needs_little_memory(tmp_path: Path, surface: Surface) -> None:
    result = await measure_idle(surface, 400, 0.5, tmp_path)
    assert (result.surface, result.connections) == (surface, 400)
    assert 0 < result.per_connection_bytes < PER_CONNECTION_BYTES_MAX[surface]


@pytest.mark.long
def test_the_command_prints_the_measurement() -> None:
    answer = CliRunner().invoke(build_app(), ["bench", "idle", "--connections", "50", "--seconds", "0.2", "--json"])
    assert answer.exit_code == 0, answer.output
    documents: list[dict[str, Any]] = json.loads(answer.stdout)
    assert [document["surface"] for document in documents] == ["websocket", "sse"]
