from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_loadtest.node import records, scan


def test_files_are_dropped_from_the_page_cache_and_kept_on_disk(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "file").write_bytes(bytes(1 << 20))
    scan._forget(tmp_path)
    assert (tmp_path / "part" / "file").read_bytes() == bytes(1 << 20)


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.machine
@pytest.mark.parametrize("cold", [False, True])
async def test_both_settings_read_all_stored_records_alternately(tmp_path: Path, *, cold: bool) -> None:
    plan = records.Plan(size_bytes=100, batch_records=100, rounds=2, records=2_000, data=tmp_path)
    results = await scan.scan(plan, cold=cold)
    assert [result.benchmark.split(", ")[2] for result in results] == ["mapped", "file"]
    for result in results:
        assert [run.records for run in result.product.runs] == [2_000, 2_000]
        assert [run.records for run in result.probe.runs] == [2_000, 2_000]
        assert result.product.watches[0].cpu_s.keys() == {"client", "node"}
