from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_loadtest.node import engines
from tidelog_loadtest.node.engine_figures import STORAGES, EnginesPlan
from tidelog_loadtest.node.engines import ENGINE_STEPS, compare_engines
from tidelog_loadtest.stand.single_node import start_node


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


@pytest.mark.e2e
async def test_all_storages_are_measured_beside_the_probe(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    told = list[int]()
    plan = EnginesPlan(counts=(20,), used_max=8, window=4, rounds=1, records=3, seconds=0.2, idle_s=0.1, data=tmp_path)
    result = await compare_engines(plan, lambda _step, done: told.append(done))
    assert told == list(range(1, ENGINE_STEPS * len(STORAGES) + 1))
    for point in result.points:
        sides = (point.node, point.probe)
        assert all(min(side.start_s, side.p50_ms, side.p99_ms, side.records_per_s, side.cpu_us) > 0 for side in sides)
        assert (point.partitions, point.used) == (20, 8)
        assert min(point.delivery_p50_ms, point.first_use_per_s, point.rss_anon_bytes, point.disk_bytes) > 0
        assert point.rss_bytes >= point.rss_anon_bytes
        assert (min(point.stored_per_s, point.stored_cpu_us) > 0) == (point.storage in {"segment", "shared"})
    descriptors = {point.storage: point.descriptors for point in result.points}
    assert descriptors["segment"] >= descriptors["shared"] + 6, "each used partition has an open segment of its own"
    assert min(point.files for point in result.points) > 8
    assert left_in(tmp_path) == []


@pytest.mark.e2e
async def test_a_node_that_ends_is_named_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dying(*arguments: object, **options: object) -> object:
        node = await start_node(*arguments, **options)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_later(0.5, node.process.kill)
        return node

    monkeypatch.setattr(engines, "start_node", dying)
    monkeypatch.setattr(engines, "DELIVERY_TIMEOUT_S", 2.0)
    plan = EnginesPlan(("segment",), (1,), records=100_000, idle_s=0.1, data=tmp_path)
    with pytest.raises(CommandFailed, match="node exited unexpectedly with code -9") as failed:
        await compare_engines(plan)
    assert '"event"' in str(failed.value) or "tidelog" in str(failed.value)
    assert left_in(tmp_path) == []
