from __future__ import annotations

from pathlib import Path

import pytest

from tidelog_loadtest.measure.runs import Budget
from tidelog_loadtest.probe.client import append_run
from tidelog_loadtest.stand.cluster_stand import cluster_stand, copies_on, own_cluster
from tidelog_loadtest.stand.payloads import encoded, value_batches


def test_with_three_nodes_there_are_three_copies() -> None:
    assert [copies_on(nodes) for nodes in (1, 2, 3, 5)] == [1, 2, 3, 3]


@pytest.mark.long
@pytest.mark.e2e
@pytest.mark.parametrize("sync", [False, True])
async def test_a_cluster_and_a_probe_of_its_topology_start_together(tmp_path: Path, sync: bool) -> None:
    payloads = encoded(value_batches(100, 10))
    length = payloads[0].length_bytes
    async with cluster_stand(nodes=3, data=tmp_path, sync=sync, payload_bytes=length, window=2) as where:
        assert where.product_pids.keys() == {"client", "node1", "node2", "node3"}
        assert where.probe_pids.keys() == {"client", "owner", "follower-1", "follower-2"}
        assert where.bootstrap.count(",") == 2
        run = await append_run(where.probe_port, payloads, Budget(batches=50), window=2)
        assert run.records == 500
    assert not _names_in(tmp_path)


@pytest.mark.e2e
async def test_a_separate_cluster_leaves_no_files(tmp_path: Path) -> None:
    async with own_cluster(1, tmp_path) as nodes:
        assert len(nodes.by_id) == 1
    assert not _names_in(tmp_path)


def _names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]
