from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidelog_loadtest.measure.footprint import rss_anon_bytes
from tidelog_loadtest.stand.single_node import stand


async def test_an_existing_node_is_used_and_the_probe_still_runs_locally(tmp_path: Path) -> None:
    async with stand(data=tmp_path, bootstrap="host:1", sync=False, payload_bytes=10, window=1) as where:
        assert where.bootstrap == "host:1"
        assert where.product_pids == {"client": os.getpid()}
        assert rss_anon_bytes(where.probe_pids["probe"]) > 0
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        rss_anon_bytes(where.probe_pids["probe"])


@pytest.mark.e2e
async def test_node_and_probe_use_one_file_system(tmp_path: Path) -> None:
    async with stand(data=tmp_path, bootstrap=None, sync=True, payload_bytes=10, window=1) as where:
        assert where.directory.parent == tmp_path
        assert where.product_pids.keys() == {"client", "node"}
        assert {path.name for path in where.directory.iterdir()} == {"node", "node.log", "probe"}
